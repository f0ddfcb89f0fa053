"""What people type in place of a command: a log, `help`, a name of an earlier version."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimtab._version import __version__
from trimtab.cli.main import app

runner = CliRunner(env={"COLUMNS": "200"})

LOG = "step,loss\n" + "".join(f"{step},{2 + 0.01 * (-1) ** step}\n" for step in range(300))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.csv", "demo", "report"):
        (tmp_path / name).write_text(LOG)
    return tmp_path


def refusal(*words: str) -> str:
    """Return what is said to words that are refused."""
    result = runner.invoke(app, list(words))
    assert result.exit_code == 2
    assert not result.stdout
    return re.sub(r"[\s│]+", " ", result.stderr)


class TestALogInPlaceOfACommand:
    def test_it_is_diagnosed(self) -> None:
        short, long = (
            runner.invoke(app, [*words, "train.csv"]).output for words in ([], ["diagnose"])
        )
        assert short == long
        assert short.startswith("Healthy: no incident in 300 records.")

    def test_options_and_more_logs_follow_it(self) -> None:
        result = runner.invoke(app, ["train.csv", "train.csv", "--json"])
        assert json.loads(result.stdout)["source"] == "train.csv, train.csv"

    def test_a_dash_is_standard_input(self) -> None:
        assert runner.invoke(app, ["-"], input=LOG).output.startswith("Healthy")

    def test_a_command_wins_over_a_file_of_its_name(self) -> None:
        assert "Break two runs" in runner.invoke(app, ["demo", "-h"]).stdout
        assert runner.invoke(app, ["./demo"]).output.startswith("Healthy")

    def test_a_file_wins_over_an_old_name(self) -> None:
        assert runner.invoke(app, ["report"]).output.startswith("Healthy")

    def test_a_run_in_a_file_may_be_named(self) -> None:
        result = runner.invoke(app, ["train.csv#3"])
        assert result.exit_code == 3
        assert "holds one run" in result.stderr


class TestHelp:
    @pytest.mark.parametrize(
        ("words", "long"),
        [
            ("-h", "--help"),
            ("help", "--help"),
            ("help --help", "--help"),
            ("help help", "--help"),
            ("diagnose -h", "diagnose --help"),
            ("help diagnose", "diagnose --help"),
            ("train.csv -h", "diagnose --help"),
            ("help lab run", "lab run --help"),
            ("lab run -h", "lab run --help"),
        ],
    )
    def test_it_is_shown_for(self, words: str, long: str) -> None:
        shown, wanted = (runner.invoke(app, line.split()) for line in (words, long))
        assert shown.exit_code == wanted.exit_code == 0
        assert shown.stdout == wanted.stdout

    @pytest.mark.parametrize("word", ["version", "--version"])
    def test_the_version(self, word: str) -> None:
        assert runner.invoke(app, [word]).stdout == f"trimtab {__version__}\n"


class TestAnUnknownWord:
    @pytest.mark.parametrize(
        ("words", "hint"),
        [
            ("serve runs", "trimtab observe RUNS --web"),
            ("analyze train.csv", "trimtab diagnose LOG"),
            ("preflight m:f", "trimtab check MODULE:FUNCTION"),
            ("answer runs/x1 yes", "ladder.unattended"),
            ("probe runs/x1", "batch_loss="),
            ("help serve", "trimtab observe RUNS --web"),
        ],
    )
    def test_what_it_is_now(self, words: str, hint: str) -> None:
        name = words.removeprefix("help ").split()[0]
        said = refusal(*words.split())
        assert f"there is no command '{name}'; " in said
        assert hint in said

    def test_what_it_is_near_to(self) -> None:
        assert "did you mean 'diagnose'?" in refusal("diagnos", "train.csv")
        assert "'follow'" not in refusal("folow")  # no old name is suggested

    @pytest.mark.parametrize("word", ["trian.log", "", "\0"])
    def test_it_is_neither_a_command_nor_a_file(self, word: str) -> None:
        said = refusal(word)
        assert f"{word!r} is neither a command nor a file; trimtab --help lists" in said

    def test_pasted_text_is_quoted_in_part(self) -> None:
        assert "loss=2.5 ' is neither" in refusal("step=1 loss=2.5 " * 1000)


@pytest.mark.parametrize("words", ["chart.csv --run b", "- --run b", "chart.csv#b"])
def test_a_run_of_several_in_a_file_is_chosen_by_its_name(folder: Path, words: str) -> None:
    bounds = ("", "__MIN", "__MAX")
    names = [f"{run} - loss{bound}" for run in "ab" for bound in bounds]
    rows = [",".join(["Step", *names])]
    rows += [f"{step},2.5,2.5,2.5,7.5,7.5,7.5" for step in range(100)]
    (folder / "chart.csv").write_text("\n".join(rows))
    pasted = (folder / "chart.csv").read_text()
    result = runner.invoke(app, words.split(), input=pasted)
    assert "The loss is 7.5 in every record" in result.stdout
