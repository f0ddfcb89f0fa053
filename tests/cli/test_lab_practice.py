"""`trimtab lab practice`, from the question to the comparison."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from rich.console import Console
from tests.lab.conftest import SMALL_BYTES
from typer.testing import CliRunner

from trimtab.cli.lab import practice as lab_practice
from trimtab.cli.main import app
from trimtab.core.actions import ActionKind
from trimtab.lab.practice.exercise import Exercise
from trimtab.lab.practice.write_up import empty_write_up
from trimtab.lab.scenarios import scenario

SEED = 3


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "CORPUS_BYTES", SMALL_BYTES)


def _call(
    cache: Path, out: Path, *options: str, said: str = "", **environment: str
) -> tuple[int, str]:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "100", **environment})
    usual = ["--seed", str(SEED), "--steps", "48", "--out", str(out)]
    result = runner.invoke(app, ["lab", "practice", *usual, *options], input=said)
    return result.exit_code, result.output


def test_the_whole_way_from_the_question_to_the_comparison(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = Exercise.of_seed(SEED, 48)
    was = exercise.disturbance()
    folder = tmp_path / f"exercise-{SEED}"
    yours, ours = folder / "postmortem-yours.md", folder / "postmortem-ours.md"
    folder.mkdir()
    written = f"Onset step: {exercise.onset} [b]\x1b[31m\n"
    yours.write_text(written)

    code, told = _call(cache, tmp_path, "--no-edit", said="panic\nroll back 6\n")
    assert code == 0, told
    question, answer = told.split("What do you do?")
    assert was.title not in question
    assert type(was).__name__ not in question
    assert "'panic' is no answer" in answer
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
    assert "agreed" not in lines


def test_what_cannot_be_carried_out_is_told_before_anything_is_trained(
    cache: Path, tmp_path: Path
) -> None:
    code, told = _call(cache, tmp_path, "--answer", "roll back 5")
    assert (code, "the step of a checkpoint" in told) == (2, True)
    assert not any(tmp_path.iterdir())


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
    lab_practice._write_up(folder, Exercise.of_seed(SEED), edit=True)
    assert "Cause: F01" in (folder / "postmortem-yours.md").read_text()
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("editor", ["", "no-such-editor-anywhere"])
def test_no_editor_is_no_end(
    editor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.delenv("VISUAL", raising=False)
    lab_practice._write_up(tmp_path, Exercise.of_seed(SEED), edit=True)
    told = capsys.readouterr().err
    assert "EDITOR is not set" in told if not editor else "the editor did not start" in told
    assert (tmp_path / "postmortem-yours.md").exists()
