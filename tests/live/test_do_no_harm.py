"""A bug of ours, planted in many places: the weights are the same, the journal tells it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tests.live.tiny import (
    Outcome,
    Setup,
    adamw,
    assert_same_bits,
    batches,
    loss_of,
    make_model,
    train,
)
from tests.ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.errors import JournalError
from trimtab.journal import RunDirectory, read_journal

STEPS = 40
FAILS_AT = 15

PLACES = [
    "trimtab.live.measure.activations._Writer._write",
    "trimtab.live.measure.loss_meter.LossMeter.add",
    "trimtab.live.measure.sensors.as_scalar",
    "trimtab.live.measure.sensors.Sensors.give_norm",
    "trimtab.live.measure.sensors.Sensors.measure_head",
    "trimtab.live.measure.sensors.Sensors.take_own",
    "trimtab.live.measure.sensors.Sensors.interpret_head",
    "trimtab.live.measure.sensors.Sensors.interpret_rest",
    "trimtab.live.measure.sensors._explain_head",
    "trimtab.live.measure.state_sums._squares",
    "trimtab.live.measure.shares.Shares.by_role",
    "trimtab.live.measure.telemetry.Telemetry.measure",
    "trimtab.live.measure.telemetry.Telemetry.interpret",
    "trimtab.live.measure.telemetry.sum_state",
    "trimtab.live.loop.watcher.Watcher._fill",
    "trimtab.live.host.delivery.Delivery.take",
    "trimtab.live.loop.watcher.Watcher.note_loss_scale",
    "trimtab.live.host.host_side.HostSide.take",
    "trimtab.live.host.host_side.HostSide._judge_record",
    "trimtab.live.host.host_side.HostSide._derived",
    "trimtab.judge.Judge.feed",
    "trimtab.journal.write.writer.JournalWriter.append",
    "trimtab.detect.ensemble.Ensemble.feed",
]
AT_THE_END = [
    "trimtab.live.ranks.boundary.Boundary.drain",
    "trimtab.live.host.host_side.HostSide.close",
    "trimtab.live.host.host_side.HostSide._write_postmortems",
    "trimtab.judge.Judge.finish",
]
SETUP = Setup(adamw(fused=True), steps=STEPS, guard_clips=True)


class Planted(Exception):
    """The bug."""


@contextmanager
def planted(place: str, when: Callable[[], bool]) -> Iterator[None]:
    """Make a function of ours raise whenever the condition holds."""
    owner_name, name = place.rsplit(".", 1)
    owner = _resolve(owner_name)
    original = getattr(owner, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if when():
            raise Planted(place)
        return original(*args, **kwargs)

    with mock.patch.object(owner, name, failing):
        yield


def _resolve(path: str) -> Any:
    import importlib

    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def train_with(place: str, folder: Path, setup: Setup = SETUP, data: Any = None) -> Outcome:
    step = -1

    def on_step(number: int) -> None:
        nonlocal step
        step = number

    with planted(place, lambda: step >= FAILS_AT):
        return train(setup, folder, on_step=on_step, data=data)


def failures(folder: Path) -> list[str]:
    block = read_journal(RunDirectory(folder)).block
    return [str(event.facts["place"]) for event in block.events if event.kind == "trimtab failed"]


@pytest.fixture(scope="module")
def bare() -> Outcome:
    return train(SETUP, None)


@pytest.mark.parametrize("place", [*PLACES, *AT_THE_END])
def test_training_goes_on_and_the_journal_tells_it(
    place: str, bare: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_same_bits(bare, train_with(place, tmp_path))
    assert any("steps aside" in record.getMessage() for record in caplog.records)
    if place not in AT_THE_END and not place.endswith("append"):
        assert len(failures(tmp_path)) == 1
    # Where closing itself failed, the journal's thread is still writing.
    deadline = time.monotonic() + 10
    while len(read_journal(RunDirectory(tmp_path)).block) < FAILS_AT - 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failing_writer_thread_costs_records_only(bare: Outcome, tmp_path: Path) -> None:
    assert_same_bits(
        bare, train_with("trimtab.journal.write.open_segment.OpenSegment.flush", tmp_path)
    )


def test_a_guard_that_cannot_begin_steps_aside(
    bare: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with planted("trimtab.live.watch.Sensors", lambda: True):
        assert_same_bits(bare, train(SETUP, tmp_path))
    assert "could not begin" in caplog.text


def test_a_run_directory_that_cannot_be_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = make_model()
    with pytest.raises(JournalError, match="check the path"):
        trimtab.watch(model, torch.optim.SGD(model.parameters()), run_dir=tmp_path / "file" / "x")


def on_ranks(rank: int, place: str, failing_rank: int, folder: Path) -> int:
    setup = Setup(adamw(fused=True), steps=STEPS, guard_clips=True, wrap=DistributedDataParallel)
    data = batches(STEPS, seed=10 + rank)
    bare = train(setup, None, data=data)
    if rank == failing_rank:
        watched = train_with(place, folder, setup, data)
    else:
        watched = train(setup, folder, data=data)
    assert_same_bits(bare, watched)
    return len(read_journal(RunDirectory(folder)).block)


RANK_PLACES = [
    "trimtab.live.measure.activations._Writer._write",
    "trimtab.live.measure.loss_meter.LossMeter.add",
    "trimtab.live.measure.sensors.Sensors.measure_head",
    "trimtab.live.measure.telemetry.Telemetry.measure",
    "trimtab.live.host.delivery.Delivery.take",
    "trimtab.live.loop.watcher.Watcher._fill",
]


@pytest.mark.parametrize("failing_rank", [0, 1])
@pytest.mark.parametrize("place", RANK_PLACES)
def test_on_two_ranks_all_part_at_the_same_step(
    place: str, failing_rank: int, tmp_path: Path
) -> None:
    run_ranks(on_ranks, 2, place, failing_rank, tmp_path)
    assert len(failures(tmp_path)) == 1
    reading = read_journal(RunDirectory(tmp_path))
    assert FAILS_AT - 3 <= len(reading.block) <= FAILS_AT + 10
    assert reading.ended == "closed"


def cannot_begin(rank: int, folder: Path) -> str:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with planted("trimtab.live.watch.Sensors", lambda: rank == 1):
        guard = trimtab.watch(model, optimizer, run_dir=folder)
    for batch in batches(3):
        loss = loss_of(model, batch)
        guard.record(loss=loss)
        loss.backward()
        optimizer.step()
    guard.close()
    return type(guard).__name__


def test_ranks_begin_together_or_not_at_all(tmp_path: Path) -> None:
    assert run_ranks(cannot_begin, 2, tmp_path) == ["NoGuard", "NoGuard"]
