"""Ranks that leave, come without a record, or were never watched: the others go on."""

import contextlib
import os
import signal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import one_of_each
from tests.kit.launch import digest, log_of_trimtab, run_ranks
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import NAN, losses, watching
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.errors import TrimtabError

MODES = ["observe", "protect"]


def ddp() -> DistributedDataParallel:
    return DistributedDataParallel(make_model())


def stop_gracefully(rank: int, folder: Path, mode: str) -> tuple[int, float]:
    """A handler sets a flag, the ranks agree every fifth step, save a checkpoint and leave."""
    wanted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: wanted.append(number))
    with watching(folder, mode, model=ddp()) as run:
        for step, batch in enumerate(batches(40, seed=rank)):
            if step == 11 + rank:  # it reaches the ranks at different moments
                os.kill(os.getpid(), signal.SIGTERM)
            run.step(batch, clip=1.0)
            if step % 5 == 4:
                flag = torch.tensor(float(len(wanted)))
                dist.all_reduce(flag, op=dist.ReduceOp.MAX)
                if flag > 0:
                    return step, digest(run.model)
    return -1, 0.0


@pytest.mark.parametrize("mode", MODES)
def test_a_graceful_sigterm_leaves_time_for_the_checkpoint(mode: str, tmp_path: Path) -> None:
    first, second = run_ranks(stop_gracefully, 2, tmp_path, mode)
    assert first == second
    assert first[0] == 14
    assert len(losses(tmp_path)) == 15


def train_uneven(rank: int, folder: Path, mode: str) -> float:
    with watching(folder, mode, model=ddp()) as run, run.model.join():
        for batch in batches(8 + 4 * rank, seed=rank):
            run.step(batch, clip=1.0)
    return digest(run.model)


@pytest.mark.parametrize("mode", MODES)
def test_ranks_with_fewer_batches_may_join(mode: str, tmp_path: Path) -> None:
    first, second = run_ranks(train_uneven, 2, tmp_path, mode)
    assert first == second


def leave_early(rank: int, folder: Path, who: int) -> float:
    """One rank's exception ends its with-block; it is caught, and training goes on."""
    data = batches(24, seed=rank)
    done = 0
    with (
        contextlib.suppress(ConnectionError),
        watching(folder, "protect", model=ddp()) as run,
    ):
        for batch in data[:16]:
            run.step(batch, clip=1.0)
            done += 1
            if rank == who and done == 8:
                raise ConnectionError("the tracker is down")
    for batch in data[done:]:
        run.step(batch, clip=1.0)
    return digest(run.model)


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_leaves_the_guard_leaves_the_others_alone(who: int, tmp_path: Path) -> None:
    first, second = run_ranks(leave_early, 2, tmp_path, who)
    assert first == second


def miss_records(rank: int, folder: Path, mode: str, who: int, when: range) -> Any:
    """One rank does not record: its batch is empty, or only the other one logs."""
    recorded = []
    with log_of_trimtab() as said, watching(folder, mode, model=ddp()) as run:
        for step, batch in enumerate(batches(30, seed=rank)):
            loss = loss_of(run.model, batch)
            if rank != who or step not in when:
                run.guard.record(loss=loss, tokens=batch.numel())
            recorded.append(loss.item())
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
    return digest(run.model), recorded, said


@pytest.mark.parametrize(("who", "mode"), one_of_each(product([0, 1], MODES)))
def test_a_step_that_one_rank_does_not_record_is_a_step(
    who: int, mode: str, tmp_path: Path
) -> None:
    ends = run_ranks(miss_records, 2, tmp_path, mode, who, range(10, 11))
    assert ends[0][0] == ends[1][0]
    assert len(losses(tmp_path)) == 30
    assert losses(tmp_path)[10] == pytest.approx(ends[1 - who][1][10], rel=1e-5)


def test_recording_on_the_first_rank_alone_works_and_is_reported(tmp_path: Path) -> None:
    ends = run_ranks(miss_records, 2, tmp_path, "observe", 1, range(30))
    assert ends[0][0] == ends[1][0]
    assert losses(tmp_path) == pytest.approx(ends[0][1], rel=1e-5)
    assert any("record" in sentence for end in ends for sentence in end[2])


def watch_one_rank(rank: int, folder: Path, who: int) -> float:
    model = ddp()
    for is_on in (rank == who, False):  # where it is refused in a sentence, it goes on without
        with (
            contextlib.suppress(TrimtabError),
            watching(folder, model=model, enabled=is_on) as run,
        ):
            for batch in batches(12, seed=rank):
                run.step(batch, clip=1.0)
            break
    return digest(model)


@pytest.mark.parametrize("who", [0, 1])
def test_a_guard_on_one_rank_alone_is_refused_or_works(who: int, tmp_path: Path) -> None:
    first, second = run_ranks(watch_one_rank, 2, tmp_path, who)
    assert first == second


def skip_together(rank: int, folder: Path, mode: str) -> tuple[float, int]:
    """All ranks leave out a batch whose loss is NaN on one of them."""
    skipped = 0
    with watching(folder, mode, model=ddp()) as run:
        for step, batch in enumerate(batches(16, seed=rank)):
            loss = loss_of(run.model, batch) * (NAN if step == 8 and rank == 1 else 1.0)
            run.guard.record(loss=loss, tokens=batch.numel())
            total = loss.detach().clone()
            dist.all_reduce(total)
            if not torch.isfinite(total):
                skipped += 1
                continue
            loss.backward()
            before = digest(run.model)
            run.optimizer.step()
            run.optimizer.zero_grad()
            skipped += digest(run.model) == before
    return digest(run.model), skipped


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_all_ranks_skip_costs_no_other_step(mode: str, tmp_path: Path) -> None:
    first, second = run_ranks(skip_together, 2, tmp_path, mode)
    assert first == second
    assert first[1] == 1
    assert len(journal_of(tmp_path)) >= 15
