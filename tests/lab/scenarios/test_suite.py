"""The suite: its runs, and that an interrupted build continues with identical results."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.training import journal, timeless

from trimtab.lab.scenarios.catalogue import CLEAN, FAULTS, HARMLESS, KINDS, NATURAL
from trimtab.lab.scenarios.scenario import Grade, ModelShape, Scenario, SuiteSplit
from trimtab.lab.scenarios.suite import (
    INDEX,
    TRUTH,
    Built,
    build_suite,
    fast_suite,
    make_suite,
    read_truth,
    run_trial,
    with_twins,
)
from trimtab.lab.trainer.intervention import Base

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


def test_the_fast_suite_has_every_kind_but_the_natural_ones_once() -> None:
    kinds = [run.kind for run in fast_suite() if run.kind != CLEAN]
    assert kinds == [*FAULTS, *HARMLESS]
    assert not {*kinds} & {*NATURAL}


def test_the_tiny_suite_has_12_runs_on_every_base_but_ranks() -> None:
    runs = tiny_suite()
    assert len(runs) == 12
    assert {run.required_base for run in runs} == set(Base) - {Base.RANKS}


def test_a_suite_has_exactly_the_kinds_and_seeds_asked_for() -> None:
    runs = [run for run in make_suite(["F02", "cooldown"], [31, 32]) if run.kind != CLEAN]
    assert [(run.kind, run.grade, run.seed) for run in runs] == [
        *(("F02", grade, seed) for grade in Grade for seed in (31, 32)),
        *(("cooldown", Grade.SEVERE, seed) for seed in (31, 32)),
    ]
    assert {run.seed for run in make_suite(["F02"])} == set(range(5))
    assert {run.kind for run in make_suite(seeds=[7])} == {*KINDS, CLEAN}
    assert make_suite([CLEAN], [3]) == [Scenario(kind=CLEAN, seed=3)]


def test_a_suite_of_another_shape_has_its_own_names_and_twins() -> None:
    small, deep, broad = (make_suite(["cooldown"], [31], shape) for shape in ModelShape)
    assert [run.name for run in deep] == ["clean-plain-seed31-deep", "cooldown-severe-seed31-deep"]
    shapes = [run.config().model for run in (small[1], deep[1], broad[1])]
    assert [(shape.layers, shape.vocab_size) for shape in shapes] == [(2, 512), (4, 512), (2, 1024)]
    assert broad[1].config().batch_size == 2 * small[1].config().batch_size
    assert "shape" not in small[1].description()  # a suite built before shapes is still complete


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
    assert built == Built(runs=12, trained=12)
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
    assert build_suite(runs, two, workers=1, cache_dir=cache).runs == 12
    assert made == {name: (two / name / TRUTH).stat().st_mtime_ns for name in made}

    assert (two / INDEX).read_text() == (one / INDEX).read_text()
    for run in runs:
        assert timeless(journal(one / run.name)) == timeless(journal(two / run.name)), run.name
        assert read_truth(one / run.name) == read_truth(two / run.name)
