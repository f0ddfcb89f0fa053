import numpy as np

from trimtab.core.block import Column
from trimtab.report.sparkline import BARS, marks, sparkline


def line(values: list[float], width: int = 80) -> str:
    return sparkline(Column.complete(np.array(values)), width)


def test_a_spike_is_seen_however_long_the_run() -> None:
    values = np.full(100_000, 2.0)
    values[61_234] = 4.0
    drawn = sparkline(Column.complete(values), 80)
    assert len(drawn) == 80
    assert drawn[61_234 * 80 // 100_000] == BARS[-1]
    assert drawn.count(BARS[-1]) == 1


def test_nonfinite_and_missing_are_drawn_apart() -> None:
    column = Column(np.array([1.0, np.nan, np.nan, 2.0]), np.array([True, True, False, True]))
    assert sparkline(column, 4) == f"{BARS[0]}x {BARS[-1]}"


def test_one_huge_spike_does_not_flatten_the_rest() -> None:
    drawn = line([1.0, 2.0, 4.0, 8.0, 1e6])
    assert len(set(drawn)) > 2


def test_negative_losses_are_drawn() -> None:
    assert line([-1000.0, 0.0, 1.0, 1000.0])[0] == BARS[0]


def test_a_constant_series_is_flat() -> None:
    assert line([3.0, 3.0]) == BARS[0] * 2


def test_nothing_is_nothing() -> None:
    assert line([]) == ""
    assert sparkline(Column.missing(3), 10) == "   "


def test_marks_stand_under_their_records_and_crowded_ones_give_way() -> None:
    drawn = marks([(0, "^1"), (1, "^2"), (50, "^3"), (99, "^4")], 100, 50)
    assert drawn.index("^1") == 0
    assert "^2" not in drawn
    assert drawn.index("^3") == 25
    assert "^4" not in drawn  # would stick out at the end


def test_the_first_steps_do_not_flatten_the_rest() -> None:
    steps = np.arange(4000)
    drawn = sparkline(Column.complete(2.0 + 9.0 * np.exp(-steps / 60) - steps * 1e-4), 80)
    assert drawn[0] == BARS[-1]
    assert len(set(drawn[10:])) >= 5


def test_a_spike_leaves_the_shape_of_the_rest_visible() -> None:
    values = np.linspace(3.0, 2.0, 800)
    values[400] = 12.0
    drawn = line(list(values))
    assert drawn[40] == BARS[-1]
    assert drawn.count(BARS[-1]) == 1
    assert len(set(drawn[8:])) >= 4
