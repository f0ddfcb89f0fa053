import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.synthetic import block_of

from trimtab.core.block import Block, Column, Event
from trimtab.report.pages.series import (
    RunLines,
    choose_axis,
    heat_map,
    minmax_rows,
    shared_axis,
    stretches,
)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 20))
def test_the_true_extremes_of_every_bucket_are_kept(seed: int, length: int, buckets: int) -> None:
    series = np.random.default_rng(seed).standard_cauchy(length).round(1)
    rows = minmax_rows(series, buckets)
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= 2 * buckets + 4
    if length:
        assert series[rows].max() == series.max()
        assert series[rows].min() == series.min()
        assert rows[0] == 0
        assert rows[-1] == length - 1


def test_a_spike_of_one_step_in_a_million_keeps_its_height_and_its_step() -> None:
    loss = np.full(1_000_000, 2.0)
    loss[654_321] = 9.5
    line = RunLines.of(block_of({"loss": loss})).line("loss")
    assert len(line["x"]) < 5000
    at = line["y"].index(9.5)
    assert line["x"][at] == 654_322


def test_stretches_within_one_bucket_are_joined() -> None:
    mask = np.zeros(1000, dtype=bool)
    mask[[10, 11, 14, 500]] = True
    assert stretches(mask, buckets=100) == [(10, 14), (500, 500)]
    assert stretches(np.zeros(5, dtype=bool)) == []


def test_a_line_does_not_run_through_a_nan() -> None:
    line = RunLines.of(block_of({"loss": np.array([1.0, 2.0, np.nan, np.inf, 3.0])})).line("loss")
    assert line["x"] == [1, 2, 3, 5]
    assert line["y"] == [1.0, 2.0, None, 3.0]
    assert line["nonfinite"] == [[3, 4, 0]]


def resumed_earlier() -> Block:
    steps = np.array([0, 1, 2, 3, 4, 2, 3, 4, 5])
    attempts = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    values = np.array([5.0, 4.0, 9.0, 9.5, 9.9, 3.0, 2.5, 2.0, 1.5])
    event = Event(kind="resume", tick=5, step=2, facts={"last_step": 4})
    columns = {"loss": Column.complete(values)}
    return Block.from_columns(columns, step=steps, attempt=attempts, events=(event,))


def test_what_was_repeated_is_a_line_of_its_own() -> None:
    lines = RunLines.of(resumed_earlier())
    line = lines.line("loss")
    assert line["x"] == [0, 1, 2, 3, 4, 5]
    assert line["y"] == [5.0, 4.0, 3.0, 2.5, 2.0, 1.5]
    assert line["gone"] == [{"x": [2, 3, 4], "y": [9.0, 9.5, 9.9]}]


def test_a_nan_in_a_repeated_step_is_marked_as_such() -> None:
    block = resumed_earlier()
    values = block.column("loss").values.copy()
    values[[3, 8]] = np.nan
    block = dataclasses.replace(block, columns={"loss": Column.complete(values)})
    assert RunLines.of(block).line("loss")["nonfinite"] == [[3, 3, 1], [5, 5, 0]]


def test_a_log_whose_step_goes_back_without_an_event_is_read_the_same_way() -> None:
    block = resumed_earlier()
    plain = Block.from_columns(dict(block.columns), step=block.step)
    assert RunLines.of(plain).line("loss") == RunLines.of(block).line("loss")


def test_every_record_around_an_incident_is_kept() -> None:
    loss = np.random.default_rng(0).normal(2, 0.1, 100_000)
    line = RunLines.of(block_of({"loss": loss}), [(50_000, 50_010)]).line("loss", 100)
    assert set(range(49_900, 50_100)) <= set(line["x"])


@pytest.mark.parametrize(
    ("values", "log"),
    [(np.linspace(3, 2, 100), False), (np.geomspace(1, 1e4, 100), True), (np.zeros(9), False)],
)
def test_the_axis_is_logarithmic_where_it_helps(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], log: bool
) -> None:
    axis = choose_axis(values)
    assert axis["log"] is log
    assert axis["range"][0] < axis["range"][1]


def test_every_line_of_a_chart_is_within_its_axis() -> None:
    total, group = np.linspace(40, 80, 100), np.linspace(0.5, 0.6, 100)
    axis = shared_axis([total, group])
    assert axis["log"]
    assert axis["range"][0] < 0.52
    assert axis["range"][1] == 80
    assert not shared_axis([total, total / 2])["log"]
    assert shared_axis([]) == {"log": False, "range": None}


def test_an_untrained_model_does_not_set_the_range_of_the_loss() -> None:
    loss = 2 + 10 * np.exp(-np.arange(2000) / 20)
    assert choose_axis(loss)["range"][1] < 2.1


def test_a_jump_of_one_record_stays_in_the_heat_map() -> None:
    values = np.ones(100_000)
    values[777] = 16.0
    bad = np.ones(100_000)
    bad[5] = np.nan
    block = block_of({"activation_rms/b.10": values, "activation_rms/b.9": bad})
    found = heat_map(RunLines.of(block), list(block.columns), "activation_rms/")
    assert found is not None
    assert found["rows"] == ["9", "10"]
    assert max(cell for cell in found["cells"][1] if isinstance(cell, float)) == 4.0
    assert found["cells"][0][0] == "x"
