"""`trimtab lab list`, `run`, `show` and `suite`, as a user calls them."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from typer.testing import CliRunner, Result

from trimtab.cli.main import app
from trimtab.lab.scenarios import scenario as scenarios
from trimtab.lab.scenarios import suite as suites
from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.scenarios.trial import run_trial

SMALL_BYTES = 400_000


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus that is tokenized in a second, and a suite of one run."""
    monkeypatch.setattr(scenarios, "CORPUS_BYTES", SMALL_BYTES)
    monkeypatch.setattr(suites, "CORPUS_BYTES", SMALL_BYTES)


def call(cache: Path, *arguments: str) -> Result:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "160"})
    return runner.invoke(app, ["lab", *arguments])


def test_the_list_has_every_kind(cache: Path) -> None:
    result = call(cache, "list")
    assert result.exit_code == 0
    first_words = {line.split()[0] for line in result.output.splitlines() if line.strip()}
    assert set(KINDS) <= first_words
    assert "3 to 40 times the planned rate" in result.output
    assert "1 to 5 steps" in result.output


def test_run_trains_the_fault_and_its_twin_and_shows_both(cache: Path, tmp_path: Path) -> None:
    out = str(tmp_path)
    result = call(cache, "run", "F05", "--seed", "1", "--steps", "40", "--out", out)
    assert result.exit_code == 0, result.output
    assert "its twin" in result.output
    assert "^onset" in result.output
    assert "F05: a jump of the learning rate, from step" in result.output
    assert (tmp_path / "F05-severe-seed1" / "truth.json").exists()
    assert (tmp_path / "clean-plain-seed1" / "truth.json").exists()
    assert not (tmp_path / "F05-severe-seed1" / "checkpoints").exists()

    again = call(cache, "show", str(tmp_path / "clean-plain-seed1"))
    assert again.exit_code == 0
    assert "nothing was done to this run" in again.output


def test_a_severity_can_be_asked_for(cache: Path, tmp_path: Path) -> None:
    wanted = ("run", "F22", "--severity", "0.0", "--steps", "20", "--no-twin")
    result = call(cache, *wanted, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "severity 0.00: 2 times the mean" in result.output


def test_what_is_unknown_is_refused_with_the_way_out(cache: Path, tmp_path: Path) -> None:
    result = call(cache, "run", "F99", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "trimtab lab list" in result.output
    result = call(cache, "show", str(tmp_path))
    assert result.exit_code == 3
    assert "truth.json" in result.output


def test_a_suite_is_built_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = suites.with_twins([Scenario(kind="F22", seed=1, steps=20)])
    monkeypatch.setattr(suites, "fast_suite", lambda: one)
    # In-process trials: spawned workers would not see the small corpus.
    for scenario in one:
        run_trial(scenario, tmp_path, cache_dir=cache / "trimtab")
    result = call(cache, "suite", "--fast", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "2 runs in" in result.output
    assert "0 of them made now" in result.output
    assert (tmp_path / "suite.json").exists()
