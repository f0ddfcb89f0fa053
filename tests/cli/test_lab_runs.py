"""`trimtab lab list`, `run`, `show`, `suite` and `x1`, as a user calls them."""

import shlex
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from typer.testing import CliRunner, Result

from trimtab.cli.main import app
from trimtab.lab.scenarios import scenario as scenarios
from trimtab.lab.scenarios import suite as suites
from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.scenarios.scenario import Scenario

SMALL_BYTES = 400_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a corpus that is tokenized in a second."""
    monkeypatch.setattr(scenarios, "CORPUS_BYTES", SMALL_BYTES)
    monkeypatch.setattr(suites, "CORPUS_BYTES", SMALL_BYTES)


def call(cache: Path, *arguments: str) -> Result:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "160", "CI": ""})
    return runner.invoke(app, list(arguments))


def test_the_list_has_every_kind(cache: Path) -> None:
    result = call(cache, "lab", "list")
    assert result.exit_code == 0
    first_words = {line.split()[0] for line in result.output.splitlines() if line.strip()}
    assert set(KINDS) <= first_words
    assert "3 to 40 times the planned learning rate" in result.output
    assert "1 to 5 steps" in result.output


def test_run_trains_the_fault_and_its_twin_and_shows_both(cache: Path, tmp_path: Path) -> None:
    out = str(tmp_path)
    call_of_run = ("lab", "run", "F05", "--seed", "1", "--severity", "0.5", "--steps", "20")
    result = call(cache, *call_of_run, "--out", out)
    assert result.exit_code == 0, result.output
    assert "clean twin" in result.output
    assert "^onset" in result.output
    assert "F05: a jump in the learning rate, from step" in result.output
    assert "severity 0.50: " in result.output
    assert (tmp_path / "F05-severe-seed1" / "truth.json").exists()
    assert (tmp_path / "clean-plain-seed1" / "truth.json").exists()
    assert not (tmp_path / "F05-severe-seed1" / "checkpoints").exists()

    again = call(cache, "lab", "show", str(tmp_path / "clean-plain-seed1"))
    assert again.exit_code == 0
    assert "a clean run, without any fault" in again.output


def test_a_suite_of_chosen_kinds_and_seeds(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    def build(scenarios: list[Scenario], *_: object, **__: object) -> int:
        chosen.extend(scenario.name for scenario in scenarios)
        return 0

    monkeypatch.setattr(suites, "build_suite", build)
    wanted = (str(tmp_path), "--kinds", "F22, cooldown", "--seeds", "31,32,31")
    result = call(cache, "lab", "suite", *wanted)
    assert result.exit_code == 0, result.output
    assert len(chosen) == 8  # two grades of a fault, the look-alike and the twin, of two seeds


X1 = ("lab", "x1", "--fault", "F02", "--at", "30", "--steps", "40", "--checkpoint-seconds", "0.3")


def test_the_printed_commands_run_and_the_recovered_run_is_the_twin(
    cache: Path, tmp_path: Path
) -> None:
    ran = call(cache, *X1, "--out", str(tmp_path))
    assert ran.exit_code == 0, ran.output
    assert "step 10 of 40, loss " in ran.stderr
    printed = [shlex.split(line) for line in ran.stdout.splitlines() if line.startswith("  ")]
    results = [call(cache, *words[1:]) for words in printed]
    assert [result.exit_code for result in results] == [1, 0, 0, 0, 0, 0], [
        result.output for result in results
    ]
    diagnosed, saved, recovered, beside, verified, shown = (one.output for one in results)
    assert "gradient norm spike" in diagnosed
    assert "verified" in saved
    assert "trained on from step" in recovered
    assert "loss differs by 0 on average" in beside
    assert "ok    loss at most" in verified
    assert "cause   F02          F02    yes" in shown

    # Another fault does not replace a run that did not end.
    (tmp_path / "F02-severe-seed0-0.15M-at30" / "truth.json").unlink()
    again = call(cache, *X1, "--out", str(tmp_path))
    assert again.exit_code == 2
    assert "--recover 40" in again.output
