"""The suite: what is in it, and that a build can be stopped, goes on, and gives the same again."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.training import journal, timeless

from trimtab.lab.scenarios.catalogue import CLEAN, FAULTS, HARMLESS, KINDS, NATURAL
from trimtab.lab.scenarios.scenario import Grade, Scenario, SuiteSplit
from trimtab.lab.scenarios.suite import (
    INDEX,
    Built,
    build_suite,
    fast_suite,
    full_suite,
    tiny_suite,
    with_twins,
)
from trimtab.lab.scenarios.trial import TRUTH, read_truth, run_trial
from trimtab.lab.trainer.disturbance import Base

SUITES = {"full": full_suite, "fast": fast_suite, "tiny": tiny_suite}


@pytest.mark.parametrize("suite", SUITES)
def test_every_run_has_a_name_of_its_own_and_its_twin_beside_it(suite: str) -> None:
    runs = SUITES[suite]()
    assert len({run.name for run in runs}) == len(set(runs)) == len(runs)
    assert all(run.twin() in runs for run in runs)
    broken = [run for run in runs if run.kind != CLEAN]
    assert {run for run in runs if run.kind == CLEAN} == {run.twin() for run in broken}


def test_the_full_suite_has_every_kind_in_both_splits() -> None:
    runs = full_suite()
    for kind in KINDS:
        mine = [run for run in runs if run.kind == kind]
        assert {run.setting.split for run in mine} == set(SuiteSplit)
        assert {run.grade for run in mine} == (set(Grade) if kind in FAULTS else {Grade.SEVERE})
    healthy = [run for run in runs if run.kind == CLEAN or run.kind in HARMLESS]
    assert len(healthy) > 60


def test_the_fast_suite_has_every_kind_but_the_natural_ones_once() -> None:
    kinds = [run.kind for run in fast_suite() if run.kind != CLEAN]
    assert kinds == [*FAULTS, *HARMLESS]
    assert not {*kinds} & {*NATURAL}


def test_the_tiny_suite_has_12_runs_on_every_base_but_ranks() -> None:
    runs = tiny_suite()
    assert len(runs) == 12
    assert {run.needs for run in runs} == set(Base) - {Base.RANKS}


def test_twins_are_added_once() -> None:
    clean = Scenario(kind=CLEAN, seed=0)
    runs = [clean, Scenario(kind="F01", seed=0), Scenario(kind="F02", seed=0)]
    assert with_twins(runs) == runs
    assert with_twins(runs[1:]) == runs
    assert with_twins(iter(runs[1:])) == runs


def test_a_suite_is_built_by_two_processes_and_a_second_time_the_same(tmp_path: Path) -> None:
    cache, one, two = (tmp_path / name for name in ("cache", "one", "two"))
    runs = tiny_suite()
    told: list[tuple[int, int]] = []
    built = build_suite(
        runs, one, workers=2, cache_dir=cache, on_run=lambda *done: told.append(done)
    )
    assert built == Built(runs=12, made=12)
    assert told == [(done, 12) for done in range(1, 13)]
    index = json.loads((one / INDEX).read_text())
    assert index["runs"] == {r.name: None if r.kind == CLEAN else r.twin().name for r in runs}
    assert {path.name for path in one.iterdir()} == {INDEX, *index["runs"]}

    # The second time in this process, until it was stopped in the middle of a run; then a build
    # goes on, is stopped by hand, and goes on again.
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
    assert build_suite(runs, two, workers=1, cache_dir=cache).runs == 12
    assert made == {name: (two / name / TRUTH).stat().st_mtime_ns for name in made}

    assert (two / INDEX).read_text() == (one / INDEX).read_text()
    for run in runs:
        assert timeless(journal(one / run.name)) == timeless(journal(two / run.name)), run.name
        assert read_truth(one / run.name) == read_truth(two / run.name)
