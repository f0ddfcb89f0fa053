"""Trials: a run and its truth, bit-identical each time, complete or not there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kit.cases import some_of

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.training import TRAINED, journal, per_step, timeless

from trimtab.core import signals
from trimtab.lab.scenarios import suite as trials_room
from trimtab.lab.scenarios.catalogue import CLEAN
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.scenarios.suite import TRUTH, is_trained, read_truth, run_trial
from trimtab.lab.trainer.intervention import Base
from trimtab.lab.trainer.local_ranks import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

Trial = Callable[[Scenario], Path]

STEPS = 16


@pytest.mark.parametrize("kind", some_of(["F02", "F14", "F18d"], "F18d"))
def test_the_same_scenario_gives_the_same_bits_and_the_same_truth(
    kind: str, trial: Trial, tmp_path: Path, cache: Path
) -> None:
    scenario = Scenario(kind=kind, seed=1, steps=STEPS, severity=1.0)
    one, two = trial(scenario), run_trial(scenario, tmp_path, cache_dir=cache)
    assert timeless(journal(one)) == timeless(journal(two))
    assert read_truth(one) == read_truth(two)
    assert read_truth(one)["facts"]


@pytest.mark.slow
def test_a_correct_resume_equals_the_uninterrupted_run(trial: Trial) -> None:
    resumed = journal(trial(Scenario(kind="right-resume", seed=1, steps=STEPS, severity=0.0)))
    whole = journal(trial(Scenario(kind=CLEAN, seed=1, steps=STEPS)))
    assert "resume" in {event.kind for event in resumed.events}
    for signal in (*TRAINED, signals.FINGERPRINT, signals.PARAM_NORM, signals.UPDATE_NORM):
        assert per_step(resumed, signal) == per_step(whole, signal)


# F01 changes a batch, F12 only its loss, F18d repeats batches; F02 and F03 do what two of them do.
@pytest.mark.parametrize(
    "kind", some_of(["F01", "F02", "F03", "F12", "F18d"], "F01", "F12", "F18d")
)
def test_the_data_positions_in_the_truth_are_those_of_the_changed_batches(
    kind: str, trial: Trial
) -> None:
    scenario = Scenario(kind=kind, seed=1, steps=STEPS, severity=1.0)
    run_dir = trial(scenario)
    run, twin = (journal(folder) for folder in (run_dir, trial(scenario.twin())))
    truth = read_truth(run_dir)
    positions = truth["facts"]["data_positions"]
    found, usual = (per_step(block, signals.FINGERPRINT) for block in (run, twin))
    changed = [step for step in found if found[step] != usual[step]]
    if kind == "F12":  # its batches do not change, only their loss
        losses = per_step(run, signals.LOSS)
        changed = [step for step, loss in losses.items() if loss != loss and step < truth["end"]]
    if kind in ("F03", "F18d"):  # the truth has the batches that were repeated
        again = [found[step] for step in changed]
        assert set(again) == {usual[position] for position in positions}
    else:
        assert changed == positions
    assert changed[0] == truth["onset"] == scenario.onset


def test_a_trial_writes_a_run_directory_and_its_truth(trial: Trial) -> None:
    scenario = Scenario(kind="F02", seed=1, steps=STEPS, severity=1.0)
    run_dir = trial(scenario)
    assert sorted(path.name for path in run_dir.iterdir()) == ["trimtab", TRUTH]
    truth = read_truth(run_dir)
    assert truth["scenario"] == run_dir.name == "F02-severe-seed1"
    assert (truth["cause"], truth["is_fault"], truth["heals"]) == ("F02", True, True)
    assert truth["setting"]["regime"] == "no clip, beta2 0.999"
    assert truth["twin"] == "clean-plain-seed1"


@pytest.mark.slow
def test_a_trial_on_ranks_has_the_facts_of_all_ranks(trial: Trial) -> None:
    run_dir = trial(Scenario(kind="F14", seed=1, steps=STEPS, severity=1.0))
    truth = read_truth(run_dir)
    assert truth["facts"]["rank"] == 1
    assert truth["facts"]["steps"][0] == truth["onset"]


def test_a_finished_trial_is_kept_and_an_interrupted_one_is_trained_again(
    trial: Trial, tmp_path: Path, cache: Path
) -> None:
    scenario = Scenario(kind=CLEAN, seed=1, steps=4)
    run_dir = run_trial(scenario, tmp_path, cache_dir=cache)
    first = (run_dir / TRUTH).stat().st_mtime_ns
    assert is_trained(scenario, tmp_path)
    run_trial(scenario, tmp_path, cache_dir=cache)
    assert (run_dir / TRUTH).stat().st_mtime_ns == first

    (run_dir / TRUTH).unlink()
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "left-over").touch()
    assert not is_trained(scenario, tmp_path)
    run_trial(scenario, tmp_path, cache_dir=cache)
    assert is_trained(scenario, tmp_path)
    assert len(journal(run_dir)) == 4
    assert not (run_dir / "checkpoints").exists()


@pytest.mark.slow
def test_a_trial_with_the_same_name_and_different_settings_is_trained_again(
    trial: Trial, tmp_path: Path, cache: Path
) -> None:
    short, longer = (Scenario(kind=CLEAN, seed=1, steps=steps) for steps in (3, 4))
    assert short.name == longer.name
    run_dir = run_trial(short, tmp_path, cache_dir=cache)
    assert not is_trained(longer, tmp_path)
    run_trial(longer, tmp_path, cache_dir=cache)
    assert len(journal(run_dir)) == 4
    (run_dir / TRUTH).write_text('{"scenario": "cut o')
    assert not is_trained(longer, tmp_path)


def test_a_trial_with_an_older_wording_is_kept_and_one_with_a_different_severity_is_not(
    trial: Trial, tmp_path: Path, cache: Path
) -> None:
    scenario = Scenario(kind="F22", seed=1, steps=4)
    run_dir = run_trial(scenario, tmp_path, cache_dir=cache)
    truth = read_truth(run_dir)
    (run_dir / TRUTH).write_text(json.dumps(truth | {"title": "older", "strength_is": "older"}))
    assert is_trained(scenario, tmp_path)
    (run_dir / TRUTH).write_text(json.dumps(truth | {"severity": 0.5}))
    assert not is_trained(scenario, tmp_path)


def test_steps_are_reported(trial: Trial, tmp_path: Path, cache: Path) -> None:
    steps: list[int] = []
    scenario = Scenario(kind=CLEAN, seed=1, base=Base.RESUME, steps=6)
    run_trial(scenario, tmp_path, cache_dir=cache, on_step=lambda done, loss: steps.append(done))
    assert steps == [1, 2, 3, 4, 5, 6]


def test_lost_ranks_start_again(
    trial: Trial, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_twice(body: Any, world: int, *args: Any, timeout: float) -> list[Any]:
        # What `run_ranks` does when the first ranks were lost.
        run_ranks(body, world, *args)
        return run_ranks(body, world, *args)

    monkeypatch.setattr(trials_room, "run_ranks", run_twice)
    scenario = Scenario(kind=CLEAN, seed=1, base=Base.RANKS, steps=3)
    assert len(journal(run_trial(scenario, tmp_path, cache_dir=cache))) == 3
