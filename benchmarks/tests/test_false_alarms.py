"""False alarms by detector, on runs without a fault and in quiet parts."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.detect import false_alarms
from benchmarks.detect.false_alarms import (
    DISTANCE,
    false_alarm_tables,
    measure_false_alarms,
    quiet_records,
)
from benchmarks.tests.test_suite import write_run
from tests.kit.public_runs import Label, RealRun
from tests.kit.synthetic import block_of, falling_loss


def eventful(rows: int, start: int, end: int) -> RealRun:
    label = Label(
        kind="spike", start=start, peak=start, end=end, outcome="recovered", confidence="high"
    )
    loss = falling_loss(rows, seed=1, noise=0.03)
    loss[start : start + 5] += 3.0
    loss[start + 400 : start + 405] += 3.0  # no label: a false alarm
    block = block_of({"loss": loss}, first_step=0)
    return RealRun(
        name="eventful", split="tune", label="spikes", tags=(), labels=(label,), block=block
    )


def test_the_quiet_part_starts_32_records_from_an_event() -> None:
    quiet = quiet_records(eventful(1200, 500, 520))
    assert not quiet[500 - 10 - DISTANCE : 520 + DISTANCE + 1].any()
    assert quiet[: 500 - 10 - DISTANCE].all()
    assert quiet[520 + DISTANCE + 1 :].all()


def test_alarms_at_bad_batches_and_of_lost_time_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = falling_loss(600, seed=3, noise=0.03)
    losses[400:406] += 3.0
    write_run(tmp_path, "clean-plain-seed2", losses.tolist(), onset=None)
    for bad, num_false in (((399,), 0), ((390,), 1)):
        monkeypatch.setattr(false_alarms, "bad_steps", lambda _, bad=bad: bad)
        (lab,) = measure_false_alarms([tmp_path], [])
        assert (lab.num_alarmed, len(lab.at_bad_batches)) == (num_false, 1 - num_false)
        assert lab.episodes["loss-spike"] == num_false


def test_false_alarms_are_counted_by_material_and_detector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(false_alarms, "bad_steps", lambda _: ())
    losses = falling_loss(600, seed=3, noise=0.03)
    write_run(tmp_path, "clean-plain-seed1", losses.tolist(), onset=None)
    losses[400:406] += 3.0
    write_run(tmp_path, "clean-plain-seed2", losses.tolist(), onset=None)
    write_run(tmp_path, "F05-severe-seed2", losses.tolist(), onset=400)
    lab, public = measure_false_alarms([tmp_path], [eventful(1200, 500, 520)])
    assert (lab.num_runs, lab.num_points, lab.num_alarmed) == (2, 1200, 1)
    assert lab.episodes["loss-spike"] == public.episodes["loss-spike"] == 1
    assert public.num_points == int(np.sum(quiet_records(eventful(1200, 500, 520))))
    text = false_alarm_tables([lab, public])
    assert "clean-plain-seed2 (loss-spike)" in text
    assert "| lab small, clean | 2 | 1,200 | 1; 8.33 " in text
    assert (
        "| healthy lab runs with a false alarm | 1 of 2; 50 % [1, 99] | at most 1 % | NO |" in text
    )
    assert "| healthy lab runs advised to roll back | 0 of 2 | none | yes |" in text
