"""The suite and its runs: bit-identical each time, complete or not there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.cases import some_of
from tests.lab.training import journal, timeless

from trimtab.lab.scenarios.catalogue import CLEAN, FAULTS, HARMLESS, KINDS
from trimtab.lab.scenarios.scenario import Grade, Scenario, SuiteSplit
from trimtab.lab.scenarios.suite import (
    INDEX,
    TRUTH,
    build_suite,
    fast_suite,
    is_trained,
    make_suite,
    read_truth,
    run_trial,
    with_twins,
)

TINY_KINDS = ("F02", "F05", "F11", "F12", "F13w", "F18", "F23", "cooldown", "right-resume")


def tiny_suite() -> list[Scenario]:
    """12 short runs that use every part of the lab but ranks."""
    return with_twins(Scenario(kind=kind, seed=1, steps=40) for kind in TINY_KINDS)


SUITES = {"full": make_suite, "fast": fast_suite, "tiny": tiny_suite}


@pytest.mark.parametrize("suite", SUITES)
def test_every_run_has_a_unique_name_and_its_twin_in_the_suite(suite: str) -> None:
    runs = SUITES[suite]()
    assert len({run.name for run in runs}) == len(set(runs)) == len(runs)
    assert all(run.twin() in runs for run in runs)
    broken = [run for run in runs if run.kind != CLEAN]
    assert {run for run in runs if run.kind == CLEAN} == {run.twin() for run in broken}


def test_the_full_suite_has_every_kind_in_both_splits() -> None:
    runs = make_suite()
    for kind in KINDS:
        mine = [run for run in runs if run.kind == kind]
        assert {run.setting.split for run in mine} == set(SuiteSplit)
        assert {run.grade for run in mine} == (set(Grade) if kind in FAULTS else {Grade.SEVERE})
    healthy = [run for run in runs if run.kind == CLEAN or run.kind in HARMLESS]
    assert len(healthy) > 60


def test_a_suite_has_exactly_the_kinds_and_seeds_asked_for() -> None:
    runs = [run for run in make_suite(["F02", "cooldown"], [31, 32]) if run.kind != CLEAN]
    assert [(run.kind, run.grade, run.seed) for run in runs] == [
        *(("F02", grade, seed) for grade in Grade for seed in (31, 32)),
        *(("cooldown", Grade.SEVERE, seed) for seed in (31, 32)),
    ]
    assert {run.seed for run in make_suite(["F02"])} == set(range(5))
    assert {run.kind for run in make_suite(seeds=[7])} == {*KINDS, CLEAN}
    assert make_suite([CLEAN], [3]) == [Scenario(kind=CLEAN, seed=3)]


def test_twins_are_added_once() -> None:
    clean = Scenario(kind=CLEAN, seed=0)
    runs = [clean, Scenario(kind="F01", seed=0), Scenario(kind="F02", seed=0)]
    assert with_twins(runs) == runs
    assert with_twins(runs[1:]) == runs
    assert with_twins(iter(runs[1:])) == runs


@pytest.mark.slow
def test_a_suite_is_built_by_two_processes_and_a_second_build_is_identical(tmp_path: Path) -> None:
    cache, one, two = (tmp_path / name for name in ("cache", "one", "two"))
    runs = tiny_suite()
    progress: list[tuple[int, int]] = []
    built = build_suite(
        runs, one, workers=2, cache_dir=cache, on_run=lambda *done: progress.append(done)
    )
    assert built == 12
    assert progress == [(done, 12) for done in range(1, 13)]
    index = json.loads((one / INDEX).read_text())
    assert index["runs"] == {r.name: None if r.kind == CLEAN else r.twin().name for r in runs}
    assert {path.name for path in one.iterdir()} == {INDEX, *index["runs"]}

    # The second build starts in this process and is stopped in the middle of a run; another build
    # continues it, is interrupted, and is continued once more.
    for run in runs[:10]:
        run_trial(run, two, cache_dir=cache)
    shutil.copytree(one / runs[10].name / "trimtab", two / runs[10].name / "trimtab")
    made = {run.name: (two / run.name / TRUTH).stat().st_mtime_ns for run in runs[:10]}

    def interrupt(done: int, of: int) -> None:
        assert (done, of) == (11, 12)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_suite(runs, two, workers=1, cache_dir=cache, on_run=interrupt)
    assert not (two / INDEX).exists()
    assert build_suite(runs, two, workers=1, cache_dir=cache) <= 1
    assert made == {name: (two / name / TRUTH).stat().st_mtime_ns for name in made}

    assert (two / INDEX).read_text() == (one / INDEX).read_text()
    for run in runs:
        assert timeless(journal(one / run.name)) == timeless(journal(two / run.name)), run.name
        assert read_truth(one / run.name) == read_truth(two / run.name)


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


def test_a_trial_writes_a_run_directory_and_its_truth(trial: Trial) -> None:
    scenario = Scenario(kind="F02", seed=1, steps=STEPS, severity=1.0)
    run_dir = trial(scenario)
    assert sorted(path.name for path in run_dir.iterdir()) == ["trimtab", TRUTH]
    truth = read_truth(run_dir)
    assert truth["scenario"] == run_dir.name == "F02-severe-seed1"
    assert (truth["cause"], truth["is_fault"], truth["heals"]) == ("F02", True, True)
    assert truth["setting"]["regime"] == "no clip, beta2 0.999"
    assert truth["twin"] == "clean-plain-seed1"


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
