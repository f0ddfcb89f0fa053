"""`trimtab lab practice`: look at a run, decide what to do, and see the result."""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from trimtab.lab.practice.exercise import AnswerMark, Exercise, PracticeAnswer
    from trimtab.lab.practice.replay import ExerciseReplay

_MENU = """\
What do you do?

  wait          continue without changes
  discard       restart from the last good checkpoint and discard outlier gradients
  skip K        restart from the last good checkpoint and skip K batches
  roll back S   restart from the checkpoint of step S, with the same data; or without that of the
                steps A to B - 1, and with F times the learning rate, as `trimtab rollback` does:
                roll back S --skip A:B --lr-factor F
  lower LR F    continue with the learning rate divided by F
  quarantine    restart from the last good checkpoint, without the data that causes it
  stop          end the run and keep its best checkpoint
"""


def practice(
    seed: Annotated[
        int | None, typer.Option(help="Which exercise. Default: a random one.", min=0)
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Your answer, instead of a prompt: 'roll back 90'.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the exercises; each gets a subfolder.")
    ] = Path("trimtab-practice"),
) -> None:
    """Look at a run, decide what to do about it, and see the result of every decision.

    The run may have a fault, or only look as if it had one. Your answer and all others are carried
    out on the real run. Then you write a post-mortem and compare it with trimtab's.

    Needs the `lab` extra of trimtab: torch and tokenizers.

    Example: trimtab lab practice --seed 12

    Exit code: 0 done, 2 usage error, 3 the lab cannot do this here.
    """
    from rich.console import Console

    from trimtab.lab.practice import view
    from trimtab.lab.practice.exercise import STEPS, Exercise, parse_answer

    drawn = secrets.randbelow(10_000) if seed is None else seed
    exercise = Exercise.from_seed(drawn, STEPS)
    given = None if answer is None else parse_answer(answer, exercise)
    folder = out / f"exercise-{exercise.seed}"
    console = Console(highlight=False)
    replay = _train(exercise, folder / "run")
    console.print(view.show_run(replay.shown, exercise, console.width))
    typer.echo(f"\n{_MENU}")
    chosen = given or _ask(exercise)
    marks = _carry_out_all(chosen, exercise, replay)
    mine = next(mark for mark in marks if mark.answer == chosen)
    console.print(view.show_marks(marks, mine, replay.stakes))
    typer.echo(f"\nYour answer: {chosen}. Your score: {mine.score} of 100.\n")
    is_asked = answer is None and sys.stdin.isatty()
    edit = is_asked and typer.confirm("Write the post-mortem now?", default=True)
    _write_up(folder, exercise, edit=edit)
    console.print(view.show_truth(exercise, replay.truth))
    _compare(folder, exercise, marks, console)


def _train(exercise: "Exercise", run_dir: Path) -> "ExerciseReplay":
    from trimtab.cli.progress import progress_bar
    from trimtab.lab.practice.replay import ExerciseReplay

    shutil.rmtree(run_dir, ignore_errors=True)  # an earlier run of the same exercise is identical
    with progress_bar() as progress:

        def on_step(done: int) -> None:
            progress("Training", done, exercise.steps)

        return ExerciseReplay(
            exercise, run_dir, on_text=partial(progress, "Preparing text"), on_step=on_step
        )


def _ask(exercise: "Exercise") -> "PracticeAnswer":
    from trimtab.core.errors import ConfigError
    from trimtab.lab.practice.exercise import parse_answer

    while True:
        try:
            return parse_answer(typer.prompt("Your answer"), exercise)
        except ConfigError as error:
            typer.echo(str(error))


def _carry_out_all(
    chosen: "PracticeAnswer", exercise: "Exercise", replay: "ExerciseReplay"
) -> "list[AnswerMark]":
    from trimtab.cli.progress import progress_bar
    from trimtab.lab.practice.exercise import candidates, mark_answers

    answers = list(dict.fromkeys([*candidates(exercise), chosen]))
    outcomes = {}
    typer.echo(
        f"Carrying out {len(answers)} answers on the real run: it is trained again from a "
        "checkpoint for each that makes a difference ...",
        err=True,
    )
    with progress_bar() as progress:
        for done, one in enumerate(answers):
            progress("Carrying out every answer", done, len(answers))
            outcomes[one] = replay.carry_out(one)
    return mark_answers(outcomes, replay.stakes)


def _write_up(folder: Path, exercise: "Exercise", *, edit: bool) -> None:
    """Write the template and open it in the editor."""
    from trimtab.lab.practice.view import empty_write_up

    path = _yours(folder)
    if not path.exists():  # never overwrite what the learner has written
        path.write_text(empty_write_up(f"Exercise {exercise.seed}"), encoding="utf-8")
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not edit:
        return
    if not editor:
        typer.echo(f"EDITOR is not set; fill in {path} and run the same command again", err=True)
        return
    try:
        subprocess.run([*editor, str(path.resolve())], check=False)  # noqa: S603 the user's own
    except OSError as error:
        typer.echo(f"the editor did not start: {error}", err=True)


def _compare(
    folder: Path, exercise: "Exercise", marks: "list[AnswerMark]", console: "Console"
) -> None:
    """Write trimtab's post-mortem of the same journal and compare both."""
    from trimtab.diagnosis import diagnose
    from trimtab.lab.practice import view
    from trimtab.report.postmortem import write_postmortem

    report = diagnose(folder / "run")
    incident = next(iter(report.most_severe(1)), None)
    ours = folder / "postmortem-ours.md"
    text = write_postmortem(incident, report) if incident else "Trimtab found no incident.\n"
    ours.write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    yours = view.read_write_up(_yours(folder).read_text(encoding="utf-8"))
    if yours is None:
        typer.echo(f"\nTrimtab's post-mortem: {ours}\nTemplate for yours: {_yours(folder)}")
        return
    truth = view.truth_of(exercise, marks)
    typer.echo("\nYour post-mortem and trimtab's, which is based on the whole journal")
    console.print(view.show_comparison(yours, view.write_up_of(incident), truth))
    typer.echo(f"\nTrimtab's post-mortem: {ours}\nYours: {_yours(folder)}")


def _yours(folder: Path) -> Path:
    return folder / "postmortem-yours.md"
