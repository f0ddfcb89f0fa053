import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.block import Event
from trimtab.core.records.builder import BlockBuilder, Record

numbers = st.floats(allow_nan=True, allow_infinity=True)
signals = st.dictionaries(st.sampled_from(["loss", "grad_norm", "lr", "x/y"]), numbers)


@given(st.lists(signals, max_size=20))
def test_every_value_comes_back_bit_for_bit_and_absent_ones_are_missing(
    rows: list[dict[str, float]],
) -> None:
    builder = BlockBuilder()
    for tick, row in enumerate(rows):
        builder.add(Record(step=tick * 3, tick=tick, signals=row, attempt=1, data_position=tick))
    block = builder.build()
    assert block.step.tolist() == [tick * 3 for tick in range(len(rows))]
    for name in ("loss", "grad_norm", "lr", "x/y"):
        column = block.column(name)
        for at, row in enumerate(rows):
            assert column.present[at] == (name in row)
            if name in row:
                assert np.float64(row[name]).tobytes() == column.values[at].tobytes()


def test_building_does_not_end_the_builder() -> None:
    builder = BlockBuilder()
    builder.add(Record(step=1, tick=0, signals={"loss": 1.0}))
    first = builder.build()
    builder.add(Record(step=2, tick=1, signals={"loss": math.nan}))
    builder.add_event(Event(kind="resume", tick=1, step=2))
    second = builder.build()
    assert len(first) == 1
    assert len(second) == 2
    assert second.events[0].kind == "resume"


def test_an_empty_builder_builds_an_empty_block() -> None:
    assert len(BlockBuilder().build()) == 0
