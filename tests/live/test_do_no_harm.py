"""A bug of ours, planted in many places: the weights are the same, and it is reported.

Every function that a run calls is broken in test_fault_injection.py; here is what is left of the
records.
"""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.kit.cases import one_of_each
from tests.kit.tiny import Outcome, Setup, adamw, assert_same_bits, batches, make_model, train
from tests.kit.user_loop import watching
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.trainer.local_ranks import run_ranks

STEPS = 40
FAILS_AT = 15

LOSS = "trimtab.live.measure.step_meter.StepMeter.add_loss"
HEAD = "trimtab.live.measure.step_meter.StepMeter.step_sums"
"""Without these nothing is known of a step: the guard steps aside."""

ALONE = {
    "telemetry": "trimtab.live.measure.state_sums.norms",
    "checksums": "trimtab.live.measure.state_hash.StateHash.measure",
    "activations": "trimtab.live.measure.activations.Activations.measure",
    "user signals": "trimtab.live.measure.state_facts.OptionWatch.resized",
}
"""These fail alone: every step is still recorded."""

JOURNAL = [
    "trimtab.live.loop.step_sync.RecordAssembler.add",
    "trimtab.live.host.recorder.Recorder.record",
    "trimtab.live.loop.step_facts.StepFacts.fill",
    "trimtab.journal.writer.JournalWriter.append",
]
"""Without these nothing more is recorded."""

AT_THE_END = [
    "trimtab.live.ranks.exchange.InFlight.drain",
    "trimtab.live.host.recorder.Recorder.close",
    "trimtab.live.host.batch_memory.BatchMemory.close",
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
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:  # a class
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def train_with(place: str, folder: Path, setup: Setup = SETUP, data: Any = None) -> Outcome:
    steps = [-1]
    with planted(place, lambda: steps[-1] >= FAILS_AT):
        return train(setup, folder, on_step=steps.append, data=data)


def failures(folder: Path) -> list[str]:
    block = read_journal(RunDirectory(folder)).block
    return [str(event.facts["place"]) for event in block.events if event.kind == "trimtab failed"]


@pytest.fixture(scope="module")
def bare() -> Outcome:
    return train(SETUP, None)


@pytest.mark.parametrize("place", [LOSS, HEAD, *JOURNAL, *AT_THE_END])
def test_training_goes_on_and_the_failure_is_reported(
    place: str, bare: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_same_bits(bare, train_with(place, tmp_path))
    assert any("training continues" in record.getMessage() for record in caplog.records)
    if place not in AT_THE_END and not place.endswith("append"):
        assert len(failures(tmp_path)) == 1
    # Where closing itself failed, the journal's thread is still writing.
    deadline = time.monotonic() + 10
    while len(read_journal(RunDirectory(tmp_path)).block) < FAILS_AT - 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("part", ALONE)
def test_a_part_fails_alone(
    part: str, bare: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert_same_bits(bare, train_with(ALONE[part], tmp_path))
    assert len([line for line in caplog.messages if f"{part} failed" in line]) == 1
    block = read_journal(RunDirectory(tmp_path)).block
    assert len(block) == STEPS
    assert block.column("loss").present.all()
    assert block.column("grad_norm").present.all()


def test_a_guard_that_cannot_begin_steps_aside(
    bare: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with planted("trimtab.live.watch.StepMeter", lambda: True):
        assert_same_bits(bare, train(SETUP, tmp_path))
    assert "could not start" in caplog.text


def on_ranks(rank: int, place: str, failing_rank: int, folder: Path) -> None:
    setup = Setup(adamw(fused=True), steps=STEPS, guard_clips=True, wrap=DistributedDataParallel)
    data = batches(STEPS, seed=10 + rank)
    bare = train(setup, None, data=data)
    if rank == failing_rank:
        watched = train_with(place, folder, setup, data)
    else:
        watched = train(setup, folder, data=data)
    assert_same_bits(bare, watched)


@pytest.mark.parametrize(("place", "failing_rank"), one_of_each(product([LOSS, HEAD], [0, 1])))
def test_on_two_ranks_all_part_at_the_same_step(
    place: str, failing_rank: int, tmp_path: Path
) -> None:
    run_ranks(on_ranks, 2, place, failing_rank, tmp_path)
    assert len(failures(tmp_path)) == 1
    reading = read_journal(RunDirectory(tmp_path))
    assert FAILS_AT - 3 <= len(reading.block) <= FAILS_AT + 10
    assert reading.ended == "closed"


def cannot_begin(rank: int, folder: Path) -> tuple[str, str]:
    model = DistributedDataParallel(make_model())
    refusal = ""
    for enabled in (True, False):
        try:
            with (
                planted("trimtab.live.watch.StepMeter", lambda: rank == 1),
                watching(folder, model=model, enabled=enabled) as run,
            ):
                run.train(3)
            break
        except ConfigError as error:
            refusal = str(error).split(":")[0]
    return refusal, type(run.guard).__name__


def test_ranks_begin_together_or_not_at_all(tmp_path: Path) -> None:
    ends = run_ranks(cannot_begin, 2, tmp_path)
    assert ends == [("rank 1 could not start", "NoGuard"), ("", "NoGuard")]
