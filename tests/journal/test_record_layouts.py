"""Packed records: the line that is written is JSON's own, and the columns hold the same bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.journal_rows import row, rows_of

from trimtab.journal.lines import encode_line
from trimtab.journal.record_queue import PackedRows, RecordLayout, RecordLayouts

one_nan = st.floats().map(lambda value: value if value == value else float("nan"))
records = st.dictionaries(st.text(), one_nan, max_size=5)


@given(signals=records)
def test_the_short_way_to_a_line_writes_what_the_long_way_writes(
    signals: dict[str, float],
) -> None:
    layout = RecordLayout(tuple(signals))
    packed = layout.pack(-3, 7, 2, 2**60, signals.values())
    entry = {"kind": "record", "step": -3, "tick": 7, "attempt": 2, "position": 2**60}
    for _ in ("long", "short"):
        assert layout.line(packed) == encode_line(entry | {"signals": signals})


@given(journey=st.lists(records, max_size=20))
def test_columns_hold_every_bit(journey: list[dict[str, float]]) -> None:
    layouts, rows = RecordLayouts(), PackedRows()
    for tick, signals in enumerate(journey):
        layout = layouts.for_names(tuple(signals))
        rows.add(layout, layout.pack(-tick, tick, 1, 2, signals.values()))
    assert len(rows) == len(journey)
    expected = {tick: row(-tick, signals, 1, 2) for tick, signals in enumerate(journey)}
    assert rows_of(rows.block()) == expected


def test_few_layouts_are_kept() -> None:
    """Layers that are dropped at random give nearly every record a set of its own."""
    layouts = RecordLayouts()
    usual = layouts.for_names(("loss",))
    for number in range(1000):
        layouts.for_names(("loss", f"layer.{number}"))
        assert layouts.for_names(("loss",)) is usual
    assert len(layouts._by_names) <= 64


def test_what_is_not_a_number_is_reported() -> None:
    with pytest.raises(TypeError, match="signals are numbers: required argument is not a float"):
        RecordLayout(("loss",)).pack(0, 0, 0, 0, ["high"])  # type: ignore[list-item]
