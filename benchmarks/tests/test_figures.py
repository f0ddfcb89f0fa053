"""From alarms to figures: delays, chance, intervals, and who dominates whom."""

from collections.abc import Sequence

import numpy as np
import pytest
from benchmarks.detect.bars import bars_of
from benchmarks.detect.contenders import Alarms, Fork
from benchmarks.detect.dominance import weaknesses
from benchmarks.detect.figures import event_recall, fault_recall, llama_early
from benchmarks.detect.injections import SHAPES, fork_at
from benchmarks.detect.intervals import poisson_interval
from benchmarks.detect.material import LOSS_ONLY, WITH_NORM, Sitting, sittings
from benchmarks.detect.measure import Result, fork_result, measure, nonfinite_counts
from benchmarks.tests.runs import event, labelled, quiet_block

from trimtab.core.block import Block, BoolArray


class Scripted:
    """Raises an alarm at given rows of the run and of every fork."""

    source = "test"

    def __init__(
        self,
        name: str,
        run_rows: Sequence[int],
        fork_rows: Sequence[int],
        warned_rows: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._run_rows, self._fork_rows = run_rows, fork_rows
        self._warned_rows = [*fork_rows, *warned_rows]

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        return Alarms(
            run=flags(len(run), self._run_rows),
            forks=[flags(len(fork.tail), self._fork_rows) for fork in forks],
            warned=[flags(len(fork.tail), self._warned_rows) for fork in forks],
        )


def flags(length: int, rows: Sequence[int]) -> BoolArray:
    raised = np.zeros(length, dtype=np.bool_)
    raised[[row for row in rows if row < length]] = True
    return raised


def results(
    name: str,
    run_rows: Sequence[int],
    fork_rows: Sequence[int],
    warned_rows: Sequence[int] = (),
) -> Result:
    material: list[Sitting] = sittings([labelled(quiet_block(3000))], 3)
    return measure(Scripted(name, run_rows, fork_rows, warned_rows), "tune", material)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0.0, 3.689), (5, 1.623, 11.668), (100, 81.36, 121.63)]
)
def test_poisson_intervals_are_the_tabled_ones(count: int, low: float, high: float) -> None:
    assert poisson_interval(count) == pytest.approx((low, high), abs=0.005)


def test_a_fault_is_found_by_a_new_alarm_in_its_window_only() -> None:
    run = quiet_block(3000)
    second = fork_at(run, 1500, SHAPES[2])
    quiet = flags(3000, [])

    found = fork_result(second, WITH_NORM, quiet, flags(len(second.tail), [3, 42]))
    assert (found.delay, found.is_early, found.by_chance) == (2, True, False)
    late = fork_result(second, WITH_NORM, quiet, flags(len(second.tail), [50]))
    assert (late.delay, late.is_early) == (10, False)
    missed = fork_result(second, WITH_NORM, quiet, flags(len(second.tail), [3]))
    assert (missed.delay, missed.is_early) == (None, False)
    held = fork_result(second, WITH_NORM, quiet, flags(len(second.tail), list(range(0, 76, 2))))
    assert held.delay is None


def test_an_alarm_just_before_the_fork_is_not_new_in_it() -> None:
    first = fork_at(quiet_block(3000), 1500, SHAPES[0])
    tail = flags(len(first.tail), [0, 1, 2])
    assert fork_result(first, WITH_NORM, flags(3000, [1498]), tail).delay is None
    assert fork_result(first, WITH_NORM, flags(3000, [1490]), tail).delay == 0
    assert fork_result(first, WITH_NORM, flags(3000, [1510]), tail).by_chance


def test_a_loss_that_turns_nonfinite_is_everyones_alarm() -> None:
    run = quiet_block(100)
    run.columns["loss"].values[40:60] = np.inf
    assert np.flatnonzero(nonfinite_counts(run, flags(100, [7]))).tolist() == [7, 40]


def test_recall_and_delay_of_events() -> None:
    run = labelled(
        quiet_block(900), event(200, 230), event(500, 540, confidence="medium"), tags=("8B", "llm")
    )
    result = measure(Scripted("x", [195, 530, 800], []), "tune", sittings([run], 0))
    high, both = event_recall(result, ("high",)), event_recall(result)
    assert (high.found, high.total, high.delays) == (1, 1, (-5,))
    assert (both.found, both.delay) == (2, "12.5 / 30")
    assert llama_early(result) == (1, 2)
    assert result.num_false == 0  # the run is not a healthy one


def test_faults_are_counted_by_kind_and_variant() -> None:
    result = results("x", [], [2])
    spike = fault_recall(result, "BLOOM spike", WITH_NORM)
    assert (spike.found, spike.total, spike.num_early, spike.delay) == (3, 3, 3, "2 / 2")
    assert fault_recall(result, "second spike", LOSS_ONLY).found == 0
    assert fault_recall(result, "drift 4e-4", LOSS_ONLY).num_early is None


def test_a_noisier_peer_may_not_find_more_and_a_quiet_one_not_as_much() -> None:
    ours = results("trimtab", [100], [2])
    noisy = results("noisy", [100, 200, 300], [2, 45])
    quiet = results("quiet", [], [2])
    blind = results("blind", [], [])
    assert {item.row for item in weaknesses(ours, noisy)} == {
        "second spike, loss and norm",
        "second spike, loss only",
    }
    assert {item.row.split(",")[0] for item in weaknesses(ours, quiet)} == {
        "small spike",
        "shift 0.10",
        "drift 4e-4",
    }
    assert weaknesses(ours, blind) == []
    both_blind = weaknesses(blind, results("blind too", [], []))
    assert len(both_blind) == 6
    assert not any(item.is_chance for item in both_blind)  # a blind peer is no excuse


def test_what_a_peer_hits_anyway_is_marked() -> None:
    ours = results("trimtab", [], [])
    always = results("always", list(range(0, 3000, 5)), list(range(0, 1200, 5)))
    drift = [item for item in weaknesses(ours, always) if item.row.startswith("drift")]
    assert drift
    assert all(item.is_chance for item in drift)


def test_each_bar_is_told_beside_what_was_reached() -> None:
    bars = {bar.what: bar for bar in bars_of(results("trimtab", [], [1]))}
    assert bars["false episodes on healthy runs"].is_met
    warning, alarm = (
        f"shift 0.10, with norm: {what}"
        for what in ("warning within 60 steps", "alarm within 180 steps")
    )
    shift = bars[warning]
    assert (shift.reached, shift.asked, shift.is_met) == ("3 of 3; 100 % [29, 100]", "95 %", True)

    late = {bar.what: bar for bar in bars_of(results("trimtab", [], [170]))}
    assert not late[warning].is_met
    assert late[alarm].is_met
    warned = {bar.what: bar for bar in bars_of(results("trimtab", [], [190], warned_rows=[40]))}
    assert warned[warning].is_met
    assert not warned[alarm].is_met
    noisy = {bar.what: bar for bar in bars_of(results("trimtab", range(100, 200, 10), []))}
    assert not noisy["false episodes on healthy runs"].is_met
