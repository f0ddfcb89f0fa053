from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.readers.shapes import assert_reads

from trimtab.core.errors import NoUsableLoss
from trimtab.core.run import Run
from trimtab.readers.table import to_run
from trimtab.readers.trackers.points import Points

Entry = tuple[str, int, float]


def run_of(*entries: Entry, times: list[float] | None = None) -> Run:
    points = Points()
    for place, (name, step, value) in enumerate(entries):
        points.add(name, step, value, times[place] if times else 0.0)
    return to_run(points.to_table(by_time=times is not None), Path("log"), "points")


def logged(text: str) -> list[Entry]:
    """The values of "loss@1=3.0 lr@1=0.1", in this order."""
    entries = []
    for word in text.split():
        name, _, rest = word.partition("@")
        step, _, value = rest.partition("=")
        entries.append((name, int(step), float(value)))
    return entries


RESTART = "The step goes back once, as after a restart."
POINTS: dict[str, tuple[Any, ...]] = {
    "values at one step are one row": (
        "loss@1=3 lr@1=0.1 loss@2=2 lr@3=0.3",
        "step=1 2 3; loss=3 2 -; lr=0.1 - 0.3",
    ),
    "a restart repeats steps in a new attempt": (
        "loss@1=1 loss@2=2 loss@3=3 loss@2=2 loss@3=3 loss@4=4",
        "step=1 2 3 2 3 4; attempt=0 0 0 1 1 1",
        RESTART,
    ),
    "around a restart every value goes to its own attempt": (
        "lr@2=0.2 loss@2=2 grad_norm@2=20 lr@3=0.3 loss@3=3 grad_norm@3=30 "
        "lr@2=0.4 loss@2=2.5 grad_norm@2=25",
        "step=2 3 2; attempt=0 0 1; lr=0.2 0.3 0.4; grad_norm=20 30 25",
        RESTART,
    ),
    "a series that counts epochs is no restart": (
        "loss@1=1 loss@2=1 val/loss@1=2 loss@3=1 loss@4=1 val/loss@2=2",
        "step=1 2 3 4; attempt=0 0 0 0; eval_loss=2 2 - -",
        ...,
    ),
    "several values at one step are all kept in order": (
        "loss@0=4 loss@5=3 loss@5=2 lr@5=0.1 loss@5=1",
        "step=0 5 5 5; loss=4 3 2 1; lr=- 0.1 - -",
    ),
    "where no step was given the rows are numbered": (
        "loss@0=3 loss@0=2 lr@0=0.1",
        "step=0 1; lr=0.1 -",
        "Every value was logged at step 0: the rows are numbered from 0.",
    ),
    "names that are axes elsewhere are values here": (
        "loss@5=1 step@5=77 global_step@5=78 clock@5=1",
        "step=5; step (logged)=77; global_step=78; clock (logged)=1",
    ),
    "steps of any size": (f"loss@{-(2**62)}=1 loss@{2**62}=2", f"step={-(2**62)} {2**62}", ...),
}


@pytest.mark.parametrize("name", POINTS)
def test_rows(name: str) -> None:
    text, *wanted = POINTS[name]
    run = run_of(*logged(text))
    assert_reads(run, *wanted)
    assert set(np.diff(run.block.tick)) <= {1}


def test_points_of_several_writers_are_ordered_by_time() -> None:
    run = run_of(*logged("loss@1=1 loss@3=3 loss@2=2"), times=[10.0, 30.0, 20.0])
    assert_reads(run, "step=1 2 3; clock=10 20 30")


def test_without_a_loss_the_longest_series_leads() -> None:
    with pytest.raises(NoUsableLoss, match="'accuracy'"):
        run_of(*logged("accuracy@1=1 accuracy@2=1 other@2=1"))
