"""The loss against that of a run over the same batches."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.synthetic import Array, block_of, falling_loss

from trimtab.core.block import Block, Column
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.detect.reference import STEPS_REMEMBERED, EarlierAttempt, Reference

LENGTH, AT = 900, 600


def loss_of(seed: int) -> Array:
    """A loss; its batches make most of the noise, the rest is a twentieth of it."""
    own = np.random.default_rng(seed).normal(0, 0.005, LENGTH)
    return falling_loss(LENGTH, seed=1, noise=0.1) + own


def beside(ours: Array, theirs: Array | None = None) -> Block:
    return block_of({"loss": ours, "reference_loss": loss_of(8) if theirs is None else theirs})


def alarms(block: Block) -> list[Finding]:
    return [found for found in Reference().update_many(block) if found.severity is Severity.ALARM]


def moved(by: float | Array) -> Array:
    loss = loss_of(7)
    loss[AT:] += by
    return loss


def test_two_healthy_runs_on_the_same_batches_raise_nothing() -> None:
    assert alarms(beside(loss_of(7))) == []
    assert alarms(beside(1.0005 * loss_of(8))) == []  # nor do equal ones with a tiny difference


def test_a_shift_far_under_the_noise_of_the_loss_is_found_in_ten_steps() -> None:
    first, *_ = alarms(beside(moved(0.02)))
    assert (first.symptom, first.signal) == (Symptom.REFERENCE_GAP, "loss")
    assert AT < first.tick <= AT + 10
    assert first.expected is not None
    assert first.limit is not None
    assert first.value > first.limit > first.expected


def test_a_loss_under_its_reference_is_a_warning() -> None:
    first, *_ = Reference().update_many(beside(moved(-0.04)))
    assert first.severity is Severity.WARN


def test_runs_that_part_and_wander_are_reported_three_times_at_most() -> None:
    assert 1 <= len(alarms(beside(moved(np.linspace(0, 3, LENGTH - AT))))) <= 3


def test_a_nan_in_the_reference_is_no_gap() -> None:
    other = loss_of(8)
    other[AT : AT + 50] = np.nan
    other[AT + 60] = np.inf
    assert alarms(beside(loss_of(7), other)) == []


def again(block: Block, first: int, last: int, shift: np.ndarray) -> Block:
    """The run, then a second attempt at some of its steps with a different loss."""
    loss = block.column("loss").values[first:last] + shift
    replay = dataclasses.replace(
        block[first:last],
        tick=block.tick[-1] + 1 + np.arange(last - first),
        attempt=np.ones(last - first, dtype=np.int64),
        columns={**block[first:last].columns, "loss": Column.complete(loss)},
    )
    return Block.concat([block, replay])


def test_an_earlier_attempt_is_a_reference_without_being_given() -> None:
    plain = block_of({"loss": falling_loss(LENGTH, noise=0.1)})
    shift = np.where(np.arange(300) < 100, 0.0, 0.05)
    same = again(plain, 500, 800, np.zeros(300))
    assert alarms(same) == []
    first, *_ = alarms(again(plain, 500, 800, shift))
    assert LENGTH + 100 < first.tick < LENGTH + 110


@pytest.mark.parametrize("known", ["fingerprint", "data_position"])
def test_a_different_batch_at_the_same_step_is_not_the_same(known: str) -> None:
    def record(attempt: int, mark: int) -> Block:
        columns = {"loss": Column.complete(np.array([2.0]))}
        if known == "fingerprint":
            columns["fingerprint"] = Column.complete(np.array([float(mark)]))
        return Block.from_columns(
            columns,
            step=np.array([5]),
            attempt=np.array([attempt]),
            data_position=np.array([mark if known == "data_position" else -1]),
        )

    for mark, is_same in ((3, True), (4, False)):
        memory = EarlierAttempt()
        memory.update(record(0, 3))
        assert (memory.update(record(1, mark)).tolist() == [2.0]) is is_same


def test_the_memory_is_bounded() -> None:
    memory = EarlierAttempt()
    memory.update(block_of({"loss": np.ones(3 * STEPS_REMEMBERED)}))
    memory.update(block_of({"loss": np.ones(STEPS_REMEMBERED // 2)}))  # steps that went back
    assert len(memory._now) == STEPS_REMEMBERED


@settings(deadline=None, max_examples=examples(40))
@given(
    cuts=st.lists(st.integers(1, 1199), max_size=6),
    shift=st.sampled_from([0.0, 0.02, 0.5, -0.5]),
    is_given=st.booleans(),
)
def test_how_a_run_is_cut_and_saved_changes_nothing(
    cuts: list[int], shift: float, is_given: bool
) -> None:
    block = beside(moved(shift)) if is_given else block_of({"loss": moved(shift)})
    block = again(block, 500, 800, np.linspace(0, 2 * shift, 300))
    whole = Reference().update_many(block)
    one_by_one = Reference()
    assert [found for row in block.cut(1) for found in one_by_one.update_many(row)] == whole
    pieces = []
    detector = Reference()
    for first, last in pairwise([0, *sorted(cuts), len(block)]):
        state = json.loads(json.dumps(detector.state_dict()))
        detector = Reference()
        detector.load_state_dict(state)
        pieces += detector.update_many(block[first:last])
    assert pieces == whole


def test_a_long_second_attempt_meets_the_first_where_they_overlap() -> None:
    loss = np.random.default_rng(0).normal(3.0, 0.1, 4 * STEPS_REMEMBERED)
    step = np.concatenate(
        [np.arange(STEPS_REMEMBERED), STEPS_REMEMBERED // 2 + np.arange(3 * STEPS_REMEMBERED)]
    )
    attempt = np.repeat([0, 1], [STEPS_REMEMBERED, 3 * STEPS_REMEMBERED])
    block = Block.from_columns({"loss": Column.complete(loss)}, step=step, attempt=attempt)
    many, one = EarlierAttempt(), EarlierAttempt()
    references = many.update(block)
    in_pieces = np.concatenate([one.update(piece) for piece in block.cut(100)])
    assert np.array_equal(references, in_pieces, equal_nan=True)
    assert np.flatnonzero(~np.isnan(references)).tolist() == list(
        range(STEPS_REMEMBERED, STEPS_REMEMBERED + STEPS_REMEMBERED // 2)
    )
    assert repr(many.state_dict()) == repr(one.state_dict())
