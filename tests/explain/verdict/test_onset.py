"""Onsets are dated back to where the loss began to leave its trend."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples, one_of_each
from tests.kit.synthetic import Array
from tests.kit.tracked import alarm, tracked

from trimtab.core.block import Block, Column, IntArray
from trimtab.core.findings import Severity, Symptom
from trimtab.explain.verdict.onset import date_onset
from trimtab.explain.verdict.rows import Row

AT, NOISE = 600, 0.03
SEEDS = range(20)


def rows_of(losses: Array, steps: IntArray | None = None) -> list[Row]:
    at = np.arange(len(losses)) if steps is None else steps
    return [
        Row(tick, int(step), float(loss))
        for tick, (step, loss) in enumerate(zip(at, losses, strict=True))
    ]


def falling(records: int, *, floor: float = 2.0, noise: float = NOISE, seed: int = 0) -> Array:
    at = np.arange(records)
    return np.asarray(
        floor + 7 * np.exp(-at / 90) + np.random.default_rng(seed).normal(0, noise, records)
    )


def dated(losses: Array, late: int) -> int:
    """How many records after the true onset it is dated, from an alarm so many records late."""
    return date_onset(rows_of(losses[: AT + late + 1]), AT + late) - AT


@pytest.mark.parametrize(
    ("late", "height"), one_of_each([(late, h) for late in (5, 20, 60) for h in (4, 10, 100)])
)
def test_a_jump_is_dated_to_within_five_records_however_late_its_alarm(
    late: int, height: float
) -> None:
    errors = []
    for seed in SEEDS:
        loss = falling(AT + late + 1, seed=seed)
        loss[AT:] += height * NOISE
        errors.append(dated(loss, late))
    # Rather too early than too late; noise before it may seem to belong to it, once.
    assert max(errors) <= 5
    assert sum(error < -5 for error in errors) <= 1


@pytest.mark.parametrize("late", [20, 60])
def test_a_slow_rise_is_dated_to_within_fifteen_records(late: int) -> None:
    for seed in SEEDS:
        loss = falling(AT + late + 1, seed=seed)
        loss[AT:] += 0.3 * NOISE * np.arange(late + 1)
        assert -5 <= dated(loss, late) <= 15


@pytest.mark.parametrize("late", [0, 5, 60])
def test_without_a_rise_the_onset_is_that_of_the_alarm(late: int) -> None:
    errors = [dated(falling(AT + late + 1, seed=seed), late) for seed in SEEDS]
    assert sum(error != late for error in errors) <= 1


def test_a_spike_before_that_was_over_for_forty_records_mostly_does_not_belong_to_it() -> None:
    errors = []
    for seed in SEEDS:
        loss = falling(AT + 6, seed=seed)
        loss[AT - 45 : AT - 40] += 20 * NOISE
        loss[AT:] += 10 * NOISE
        errors.append(dated(loss, 5))
    assert sum(abs(error) > 5 for error in errors) <= 4


@pytest.mark.parametrize("records_after", [1, 5, 12, 13, 40, 200])
@pytest.mark.parametrize("begins", [0, 5, 30])
def test_an_onset_is_never_dated_across_a_restart(records_after: int, begins: int) -> None:
    """The loss is high from the restart on, or from some records after it."""
    for seed in range(5):
        loss = falling(AT + records_after, seed=seed)
        loss[AT + begins :] += 30 * NOISE
        loss[AT - 100 : AT] += 30 * NOISE  # and was before: why it was restarted
        steps = np.arange(len(loss))
        steps[AT:] -= 150
        first = date_onset(rows_of(loss, steps), len(loss) - 1)
        assert AT <= first <= len(loss) - 1
        if records_after == 200 and begins == 30:
            assert abs(first - AT - begins) <= 5 or first == len(loss) - 1


@pytest.mark.parametrize(("before", "after"), [(8, 0), (7, 1), (2, 1), (1, 0)])
def test_a_sign_from_before_a_restart_breaks_nothing(before: int, after: int) -> None:
    loss = falling(AT + 100)
    loss[AT + after : AT + 20] += 2.0
    steps = np.arange(len(loss))
    steps[AT:] -= 150
    run = Block.from_columns(
        {"loss": Column.complete(loss)}, step=steps, attempt=np.repeat([0, 1], [AT, 100])
    )
    signs = (
        [alarm(AT - before, Symptom.STALE_MOMENT, Severity.WARN), alarm(AT + after)],
        [alarm(AT + after, Symptom.LEVEL_SHIFT, onset=AT - before)],
    )
    for found in signs:
        (incident,), _ = tracked(run, *found)
        assert AT - before <= incident.onset.tick <= AT + after


losses = st.one_of(
    st.none(), st.floats(0.5, 3.0), st.sampled_from([np.nan, np.inf, -np.inf, 9.0, 1e300, -1e300])
)


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(losses, st.integers(-3, 5)), min_size=1, max_size=150), st.integers(0, 149)
)
@example([(2.0, 1)] * 40, 0)
@example([(2.0, 0)] * 40, 20)
def test_any_rows_are_dated_to_one_of_them_that_is_no_later(
    entries: list[tuple[float | None, int]], latest: int
) -> None:
    steps = np.cumsum([stride for _, stride in entries]).tolist()
    rows = [
        Row(at, step, loss) for at, (step, (loss, _)) in enumerate(zip(steps, entries, strict=True))
    ]
    latest = min(latest, len(rows) - 1)
    first = date_onset(rows, latest)
    assert 0 <= first <= latest
    assert all(a < b for a, b in pairwise(steps[first : latest + 1])) or first == latest
