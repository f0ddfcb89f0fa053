"""`trimtab lab practice`: a run goes wrong, or does not; you decide, and see what became of it."""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from trimtab.lab.practice.answers import Answer
    from trimtab.lab.practice.exercise import Exercise
    from trimtab.lab.practice.rehearsal import Rehearsal
    from trimtab.lab.practice.scoring import Mark

_MENU = """\
What do you do?

  wait          go on as it is
  discard       from the checkpoint before it, throwing away outlying gradients
  skip K        from the checkpoint before it, with the data from K batches on
  roll back S   from the checkpoint of step S, with the same data
  lower LR F    go on with the learning rate divided by F
  quarantine    from the checkpoint before it, without the data that does it
  stop          end the run; its best checkpoint is what is left
"""


def practice(
    seed: Annotated[
        int | None, typer.Option(help="Which exercise; the default draws one.", min=0)
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="The answer, for whoever cannot be asked: 'roll back 100'.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Length of the run; the default takes half a minute.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the exercises; each has one of its own inside.")
    ] = Path("trimtab-practice"),
    edit: Annotated[
        bool | None,
        typer.Option(help="Write the post-mortem in $EDITOR; the default if you can be asked."),
    ] = None,
) -> None:
    """Look at a run, decide what to do about it, and see what became of each decision.

    Something is wrong with the run, or it only looks so, or nothing is. Your answer and all others
    are carried out on it, for real. Then you write the post-mortem, and compare.

    Needs torch, tokenizers and torchdata: pip install "trimtab[lab]".
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from rich.console import Console

    from trimtab.cli import output

    with output.reported_errors():
        from trimtab.lab.practice import view
        from trimtab.lab.practice.answers import parse_answer
        from trimtab.lab.practice.exercise import STEPS, Exercise

        drawn = secrets.randbelow(10_000) if seed is None else seed
        exercise = Exercise.of_seed(drawn, STEPS if steps is None else steps)
        given = None if answer is None else parse_answer(answer, exercise)
        folder = out / f"exercise-{exercise.seed}"
        console = Console(highlight=False)
        rehearsal = _train(exercise, folder / "run")
        console.print(view.show_run(rehearsal.shown, exercise, console.width))
        typer.echo(f"\n{_MENU}")
        chosen = given or _ask(exercise)
        marks = _carry_out_all(chosen, exercise, rehearsal)
        mine = next(mark for mark in marks if mark.answer == chosen)
        console.print(view.show_marks(marks, mine, rehearsal.stakes))
        typer.echo(f"\nYour answer: {chosen}. Your score: {mine.score} of 100.\n")
        if edit is None:
            edit = sys.stdin.isatty() and typer.confirm("Write the post-mortem now?", default=True)
        _write_up(folder, exercise, edit=edit)
        console.print(view.show_truth(exercise, rehearsal.truth))
        _compare(folder, exercise, marks, console)


def _train(exercise: "Exercise", run_dir: Path) -> "Rehearsal":
    from rich.console import Console
    from rich.progress import Progress

    from trimtab.lab.practice.rehearsal import Rehearsal

    shutil.rmtree(run_dir, ignore_errors=True)  # of the same exercise: it becomes the same run
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Training", total=None)

        def on_text(done: int, total: int) -> None:
            bar.update(task, description="Preparing text", completed=done, total=total)

        def on_step(done: int) -> None:
            bar.update(task, description="Training", completed=done, total=exercise.steps)

        return Rehearsal(exercise, run_dir, on_text=on_text, on_step=on_step)


def _ask(exercise: "Exercise") -> "Answer":
    """Ask until there is an answer that can be carried out."""
    from trimtab.core.errors import ConfigError
    from trimtab.lab.practice.answers import parse_answer

    while True:
        try:
            return parse_answer(typer.prompt("Your answer"), exercise)
        except ConfigError as error:
            typer.echo(str(error))


def _carry_out_all(chosen: "Answer", exercise: "Exercise", rehearsal: "Rehearsal") -> "list[Mark]":
    from rich.console import Console
    from rich.progress import track

    from trimtab.lab.practice.answers import candidates
    from trimtab.lab.practice.scoring import mark

    answers = list(dict.fromkeys([*candidates(exercise), chosen]))
    shown = track(
        answers,
        description="Carrying out every answer",
        console=Console(stderr=True),
        transient=True,
    )
    return mark({one: rehearsal.carry_out(one) for one in shown}, rehearsal.stakes)


def _write_up(folder: Path, exercise: "Exercise", *, edit: bool) -> None:
    """Lay the template out, and open it."""
    from trimtab.lab.practice.write_up import empty_write_up

    path = _yours(folder)
    if not path.exists():  # what somebody has written is never written over
        path.write_text(empty_write_up(f"Exercise {exercise.seed}"), encoding="utf-8")
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not edit:
        return
    if not editor:
        typer.echo(f"EDITOR is not set; fill in {path}, and give the same command again", err=True)
        return
    try:
        subprocess.run([*editor, str(path.resolve())], check=False)  # noqa: S603 the user's own
    except OSError as error:
        typer.echo(f"the editor did not start: {error}", err=True)


def _compare(folder: Path, exercise: "Exercise", marks: "list[Mark]", console: "Console") -> None:
    """Write our post-mortem of the same journal, and set both side by side."""
    from trimtab.diagnosis import diagnose
    from trimtab.lab.practice import view, write_up
    from trimtab.report.postmortem import write_postmortem

    report = diagnose(folder / "run")
    incident = next(iter(report.most_severe(1)), None)
    ours = folder / "postmortem-ours.md"
    text = write_postmortem(incident, report) if incident else "The judge saw no incident.\n"
    ours.write_text(text, encoding="utf-8")
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    yours = write_up.read_write_up(_yours(folder).read_text(encoding="utf-8"))
    if yours is None:
        typer.echo(f"\nOur post-mortem: {ours}\nThe empty one for yours: {_yours(folder)}")
        return
    truth = write_up.truth_of(exercise, marks)
    lines = write_up.compare(yours, write_up.write_up_of(incident), truth)
    typer.echo("\nYour post-mortem and ours, which has seen the same journal to its end")
    console.print(view.show_comparison(lines))
    typer.echo(f"\nOur post-mortem: {ours}\nYours: {_yours(folder)}")


def _yours(folder: Path) -> Path:
    return folder / "postmortem-yours.md"
