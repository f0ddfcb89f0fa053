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
from trimtab.lab.scenarios.suite import run_trial

SMALL_BYTES = 400_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a corpus that is tokenized in a second."""
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
    assert "3 to 40 times the planned learning rate" in result.output
    assert "1 to 5 steps" in result.output


def test_run_trains_the_fault_and_its_twin_and_shows_both(cache: Path, tmp_path: Path) -> None:
    out = str(tmp_path)
    result = call(cache, "run", "F05", "--seed", "1", "--steps", "40", "--out", out)
    assert result.exit_code == 0, result.output
    assert "clean twin" in result.output
    assert "^onset" in result.output
    assert "F05: a jump in the learning rate, from step" in result.output
    assert (tmp_path / "F05-severe-seed1" / "truth.json").exists()
    assert (tmp_path / "clean-plain-seed1" / "truth.json").exists()
    assert not (tmp_path / "F05-severe-seed1" / "checkpoints").exists()

    again = call(cache, "show", str(tmp_path / "clean-plain-seed1"))
    assert again.exit_code == 0
    assert "a clean run, without any fault" in again.output


def test_a_severity_can_be_given(cache: Path, tmp_path: Path) -> None:
    wanted = ("run", "F22", "--severity", "0.0", "--steps", "20", "--no-twin")
    result = call(cache, *wanted, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "severity 0.00: 2 times the mean" in result.output


def test_unknown_kinds_and_runs_are_refused_with_a_hint(cache: Path, tmp_path: Path) -> None:
    result = call(cache, "run", "F99", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "trimtab lab list" in result.output
    result = call(cache, "show", str(tmp_path))
    assert result.exit_code == 3
    assert "truth.json" in result.output


@pytest.mark.slow
def test_a_suite_is_built_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = suites.with_twins([Scenario(kind="F22", seed=1, steps=20)])
    monkeypatch.setattr(suites, "fast_suite", lambda: one)
    # In-process trials: spawned workers would not see the small corpus.
    for scenario in one:
        run_trial(scenario, tmp_path, cache_dir=cache / "trimtab")
    result = call(cache, "suite", str(tmp_path), "--fast")
    assert result.exit_code == 0, result.output
    assert "2 runs in" in result.output
    assert "0 of them trained now" in result.output
    assert (tmp_path / "suite.json").exists()


def test_a_suite_of_chosen_kinds_and_seeds(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    def build(scenarios: list[Scenario], *_: object, **__: object) -> suites.Built:
        chosen.extend(scenario.name for scenario in scenarios)
        return suites.Built(runs=len(chosen), trained=0)

    monkeypatch.setattr(suites, "build_suite", build)
    wanted = (str(tmp_path), "--kinds", "F22, cooldown", "--seeds", "31,32,31")
    result = call(cache, "suite", *wanted)
    assert result.exit_code == 0, result.output
    assert len(chosen) == 8
    assert set(chosen) == {
        *(f"F22-{grade}-seed{seed}" for grade in ("mild", "severe") for seed in (31, 32)),
        *(f"cooldown-severe-seed{seed}" for seed in (31, 32)),
        *(f"clean-plain-seed{seed}" for seed in (31, 32)),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kinds", "F02,cooldwon"), "did you mean cooldown?"),
        (("--kinds", "f13W"), "did you mean F13w"),
        (("--kinds", "?"), "unknown kind '?'; `trimtab lab list`"),
        (("--kinds", " , "), "comma-separated list"),
        (("--seeds", "1,two"), "whole numbers"),
        (("--seeds", "-1"), "whole numbers"),
        (("--fast", "--seeds", "1"), "leave out --kinds and --seeds"),
    ],
)
def test_a_suite_refuses_what_it_does_not_know(
    cache: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = call(cache, "suite", str(tmp_path / "suite"), *options)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "suite").exists()
