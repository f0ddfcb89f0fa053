"""`trimtab lab practice`, from the prompt to the comparison."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from rich.console import Console
from tests.lab.conftest import SMALL_BYTES
from typer.testing import CliRunner

from trimtab.cli.commands import lab_practice
from trimtab.cli.main import app
from trimtab.core.actions import ActionKind
from trimtab.lab.practice import exercise as exercises
from trimtab.lab.practice.exercise import Exercise
from trimtab.lab.practice.view import empty_write_up
from trimtab.lab.scenarios import scenario

SEED = 3


@pytest.fixture(autouse=True)
def _small_exercise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "CORPUS_BYTES", SMALL_BYTES)
    monkeypatch.setattr(exercises, "STEPS", 48)
    # Beside the learner's answer, only waiting, which trains nothing more;
    # tests/lab/practice carries out the others.
    tried = exercises.candidates
    monkeypatch.setattr(exercises, "candidates", lambda exercise: [*tried(exercise)][:1])


def _call(
    cache: Path, out: Path, *options: str, said: str = "", **environment: str
) -> tuple[int, str]:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "100", **environment})
    usual = ["--seed", str(SEED), "--out", str(out)]
    result = runner.invoke(app, ["lab", "practice", *usual, *options], input=said)
    return result.exit_code, result.output


def test_an_exercise_from_the_prompt_to_the_comparison(
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    exercise = Exercise.from_seed(SEED, 48)
    was = exercise.intervention()
    folder = tmp_path / f"exercise-{SEED}"
    yours, ours = folder / "postmortem-yours.md", folder / "postmortem-ours.md"
    folder.mkdir()
    written = f"Onset step: {exercise.onset} [b]\x1b[31m\n"
    yours.write_text(written)

    code, output = _call(cache, tmp_path, said="panic\nroll back 6\n")
    assert code == 0, output
    question, answer = output.split("What do you do?")
    assert was.title not in question
    assert type(was).__name__ not in question
    assert not [one for one in caplog.records if one.name.startswith("trimtab")], "it is blind"
    assert "unknown answer 'panic'" in answer
    assert all(kind.value in answer for kind in ActionKind)
    assert "roll back 6 (yours)" in answer
    assert answer.index("Your score:") < answer.index(was.title)
    assert f"{exercise.onset} [b]?[31m" in answer, "as it is, but for its escape"
    assert yours.read_text() == written
    assert ours.read_text()

    yours.write_text(empty_write_up("Exercise"))
    lab_practice._compare(folder, exercise, [], Console())
    lines = capsys.readouterr().out.split()
    assert {str(yours), str(ours)} <= set(lines)
    assert "agree" not in lines


def test_the_editor_gets_the_file_and_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.py"
    script.write_text(
        "import sys, pathlib\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "path.write_text(path.read_text().replace('Cause:', 'Cause: F01'))\n"
    )
    folder = tmp_path / "a folder; touch planted"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDITOR", f"'{sys.executable}' '{script}'")
    monkeypatch.delenv("VISUAL", raising=False)
    lab_practice._write_up(folder, Exercise.from_seed(SEED), edit=True)
    assert "Cause: F01" in (folder / "postmortem-yours.md").read_text()
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("editor", ["", "no-such-editor-anywhere"])
def test_a_missing_editor_does_not_end_the_exercise(
    editor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.delenv("VISUAL", raising=False)
    lab_practice._write_up(tmp_path, Exercise.from_seed(SEED), edit=True)
    output = capsys.readouterr().err
    assert "EDITOR is not set" in output if not editor else "the editor did not start" in output
    assert (tmp_path / "postmortem-yours.md").exists()
