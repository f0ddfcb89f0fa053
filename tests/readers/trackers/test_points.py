from pathlib import Path

import numpy as np
import pytest
from tests.readers.shapes import values

from trimtab.core.block import Block
from trimtab.core.errors import NoUsableLoss
from trimtab.core.run import Run
from trimtab.readers.table import to_run
from trimtab.readers.trackers.points import Points


def named(*entries: tuple[str, int, float], times: list[float] | None = None) -> Run:
    points = Points()
    for place, (name, step, value) in enumerate(entries):
        points.add(name, step, value, times[place] if times else 0.0)
    return to_run(points.to_table(by_time=times is not None), Path("log"), "points")


def block(*entries: tuple[str, int, float]) -> Block:
    return named(*entries).block


def test_values_at_one_step_are_one_row() -> None:
    found = block(("loss", 1, 3.0), ("lr", 1, 0.1), ("loss", 2, 2.0), ("lr", 3, 0.3))
    assert found.step.tolist() == [1, 2, 3]
    assert values(found, "loss") == [3.0, 2.0, None]
    assert values(found, "lr") == [0.1, None, 0.3]


def test_a_restart_repeats_steps_in_a_new_attempt() -> None:
    found = block(*[("loss", step, float(step)) for step in (1, 2, 3, 2, 3, 4)])
    assert found.step.tolist() == [1, 2, 3, 2, 3, 4]
    assert found.attempt.tolist() == [0, 0, 0, 1, 1, 1]


def test_around_a_restart_every_value_goes_to_its_own_attempt() -> None:
    found = block(
        *[("lr", 2, 0.2), ("loss", 2, 2.0), ("grad_norm", 2, 20.0)],
        *[("lr", 3, 0.3), ("loss", 3, 3.0), ("grad_norm", 3, 30.0)],
        *[("lr", 2, 0.4), ("loss", 2, 2.5), ("grad_norm", 2, 25.0)],
    )
    assert found.step.tolist() == [2, 3, 2]
    assert found.attempt.tolist() == [0, 0, 1]
    assert values(found, "lr") == [0.2, 0.3, 0.4]
    assert values(found, "grad_norm") == [20.0, 30.0, 25.0]


def test_a_series_that_counts_epochs_is_no_restart() -> None:
    entries = []
    for step in range(1, 31):
        entries.append(("train/loss", step, 1.0))
        if step % 10 == 0:
            entries.append(("val/loss", step // 10, 2.0))
    found = block(*entries)
    assert found.attempt.tolist() == [0] * 30
    assert values(found, "eval_loss")[:4] == [2.0, 2.0, 2.0, None]


def test_several_values_at_one_step_are_all_kept_in_order() -> None:
    repeated = [("loss", 5, 3.0), ("loss", 5, 2.0), ("lr", 5, 0.1), ("loss", 5, 1.0)]
    found = block(("loss", 0, 4.0), *repeated)
    assert found.step.tolist() == [0, 5, 5, 5]
    assert values(found, "loss") == [4.0, 3.0, 2.0, 1.0]
    assert values(found, "lr") == [None, 0.1, None, None]


def test_where_no_step_was_given_the_rows_are_numbered() -> None:
    reading = named(("loss", 0, 3.0), ("loss", 0, 2.0), ("lr", 0, 0.1))
    assert reading.block.step.tolist() == [0, 1]
    assert values(reading.block, "lr") == [0.1, None]
    (note,) = reading.notes
    assert note == "Every value was logged at step 0: the rows are numbered from 0."


def test_names_that_are_axes_elsewhere_are_values_here() -> None:
    logged = [("step", 5, 77.0), ("global_step", 5, 78.0), ("clock", 5, 1.0)]
    reading = named(("loss", 5, 1.0), *logged)
    assert reading.block.step.tolist() == [5]
    assert values(reading.block, "step (logged)") == [77.0]
    assert values(reading.block, "global_step") == [78.0]
    assert values(reading.block, "clock (logged)") == [1.0]
    assert reading.notes == ()


def test_points_of_several_writers_are_ordered_by_time() -> None:
    reading = named(("loss", 1, 1.0), ("loss", 3, 3.0), ("loss", 2, 2.0), times=[10.0, 30.0, 20.0])
    assert reading.block.step.tolist() == [1, 2, 3]
    assert values(reading.block, "clock") == [10.0, 20.0, 30.0]


def test_without_a_loss_the_longest_series_leads() -> None:
    with pytest.raises(NoUsableLoss, match="'accuracy'"):
        block(("accuracy", 1, 1.0), ("accuracy", 2, 1.0), ("other", 2, 1.0))


def test_steps_of_any_size() -> None:
    found = block(("loss", -(2**62), 1.0), ("loss", 2**62, 2.0))
    assert found.step.tolist() == [-(2**62), 2**62]
    assert np.diff(found.tick).tolist() == [1]
