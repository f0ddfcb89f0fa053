import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.block import NO_POSITION, Block, Column, Event, Record
from trimtab.core.signals import Quality


def make(steps: list[int], loss: list[float], present: list[bool] | None = None) -> Block:
    values = np.array(loss, dtype=np.float64)
    mask = np.array(present if present is not None else [True] * len(loss))
    return Block.from_columns({"loss": Column(values, mask)}, step=np.array(steps))


def test_nan_infinity_and_missing_are_different_things() -> None:
    column = Column(
        np.array([1.0, np.nan, np.inf, -np.inf, np.nan]),
        np.array([True, True, True, True, False]),
    )
    assert column.finite.tolist() == [True, False, False, False, False]
    assert column.nonfinite.tolist() == [False, True, True, True, False]
    assert column.present.tolist() == [True, True, True, True, False]


def test_a_signal_that_was_never_recorded_is_missing_everywhere() -> None:
    column = make([1, 2], [1.0, 2.0]).column("grad_norm")
    assert not column.recorded
    assert len(column.values) == 2


def test_what_is_not_given_is_what_a_plain_run_has() -> None:
    block = make([5, 6], [1.0, 2.0])
    assert block.tick.tolist() == [0, 1]
    assert block.attempt.tolist() == [0, 0]
    assert block.data_position.tolist() == [NO_POSITION, NO_POSITION]
    assert block.quality("loss") is Quality.RAW


def test_columns_of_a_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'loss'"):
        make([1, 2, 3], [1.0, 2.0])


def test_ticks_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="ticks must rise"):
        Block.from_columns({}, step=np.array([1, 2]), tick=np.array([4, 4]))


def test_concat_fills_what_one_part_lacks_with_missing() -> None:
    first = make([1], [1.0])
    second = Block.from_columns(
        {"lr": Column.complete(np.array([0.1]))},
        step=np.array([2]),
        tick=np.array([1]),
        qualities={"lr": Quality.SMOOTHED},
    )
    both = Block.concat([first, second])
    assert both.column("loss").present.tolist() == [True, False]
    assert both.column("lr").present.tolist() == [False, True]
    assert both.quality("lr") is Quality.SMOOTHED


def test_concat_keeps_the_worse_quality() -> None:
    parts = [
        Block.from_columns(
            {"loss": Column.complete(np.array([1.0]))},
            step=np.array([tick]),
            tick=np.array([tick]),
            qualities={"loss": quality},
        )
        for tick, quality in enumerate([Quality.WINDOW_MEAN, Quality.INFERRED])
    ]
    assert Block.concat(parts).quality("loss") is Quality.INFERRED


def test_concat_of_nothing_is_empty() -> None:
    assert len(Block.concat([])) == 0
    assert len(Block.concat([Block.empty()])) == 0


def test_a_cut_only_takes_consecutive_records() -> None:
    with pytest.raises(ValueError, match="consecutive"):
        make([1, 2, 3], [1.0, 2.0, 3.0])[::2]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_cutting_and_joining_gives_the_same_block(size: int) -> None:
    events = tuple(Event(kind="note", tick=tick, step=tick) for tick in (0, 2, 2, 9))
    whole = Block.from_columns(
        {"loss": Column.complete(np.arange(5.0))}, step=np.arange(5), events=events
    )
    joined = Block.concat(whole.cut(size))
    assert joined.tick.tolist() == whole.tick.tolist()
    assert joined.column("loss").values.tolist() == whole.column("loss").values.tolist()
    assert joined.events == whole.events


def test_a_complete_column_needs_no_memory_for_its_mask_even_when_joined() -> None:
    halves = [
        Block.from_columns(
            {"loss": Column.complete(np.ones(10))}, step=np.arange(10), tick=np.arange(10) + start
        )
        for start in (0, 10)
    ]
    mask = Block.concat(halves).column("loss").present
    assert mask.strides == (0,)
    assert mask.all()


def test_row_of_finds_the_first_record_at_or_after_a_tick() -> None:
    block = Block.from_columns({}, step=np.arange(3), tick=np.array([10, 20, 30]))
    assert [block.row_of(tick) for tick in (0, 10, 11, 30, 31)] == [0, 0, 1, 2, 3]


numbers = st.floats(allow_nan=True, allow_infinity=True)
signals = st.dictionaries(st.sampled_from(["loss", "grad_norm", "lr", "x/y"]), numbers)


@given(st.lists(signals, max_size=20))
def test_records_come_back_from_a_block_bit_for_bit(found: list[dict[str, float]]) -> None:
    records = [
        Record(step=tick * 3, tick=tick, signals=signals, attempt=1, data_position=tick)
        for tick, signals in enumerate(found)
    ]
    block = Block.from_records(records, [Event(kind="resume", tick=1, step=2)])
    assert block.events[0].kind == "resume"
    assert block.step.tolist() == [record.step for record in records]
    for record, again in zip(records, block.records(), strict=True):
        assert set(again.signals) == set(record.signals)  # absent ones are missing, not NaN
        for name, value in record.signals.items():
            assert np.float64(value).tobytes() == np.float64(again.signals[name]).tobytes()
        assert (again.step, again.tick, again.attempt) == (record.step, record.tick, 1)
        assert again.data_position == record.data_position
