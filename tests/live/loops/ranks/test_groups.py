"""Process groups: ours never mixes with those of the user, and not every rank has to train."""

import copy
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import some_of
from tests.kit.launch import digest, meet, run_ranks
from tests.kit.tiny import batches, make_model
from tests.kit.user_loop import NAN, Run, column, losses, watching
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.config import Config, LiveConfig
from trimtab.core.errors import TrimtabError

MODES = ["observe", "protect"]


def ddp(group: Any = None) -> DistributedDataParallel:
    return DistributedDataParallel(make_model(), process_group=group)


def train(run: Run, rank: int, steps: int, nan_at: int | None = None) -> None:
    for step, batch in enumerate(batches(steps, seed=rank)):
        factor = NAN if step == nan_at else 1.0
        run.step(batch, factor=factor, clip=1.0, tokens=batch.numel())


def save_meanwhile(rank: int, folder: Path, mode: str) -> float:
    """Asynchronous checkpoints on the default group, while training has a group of its own."""
    model = ddp(dist.new_group([0, 1]))
    saving: Any = None
    with watching(folder / "run", mode, model=model) as run:
        for step, batch in enumerate(batches(30, seed=rank)):
            run.step(batch, clip=1.0)
            time.sleep(0.002 * rank)
            if step % 10 == 0:
                if saving is not None:
                    saving.result()
                state = {"model": model.module.state_dict()}
                saving = async_save(state, checkpoint_id=folder / f"save{step}")
        saving.result()
    return digest(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", some_of(MODES, "protect"))
def test_training_goes_on_during_an_asynchronous_save(mode: str, tmp_path: Path) -> None:
    first, second = run_ranks(save_meanwhile, 2, tmp_path, mode)
    assert first == second
    assert len(losses(tmp_path / "run")) == 30


def reduce_on_a_thread(rank: int, folder: Path, mode: str) -> tuple[int, float]:
    """A thread of the user's adds up numbers on the default group."""
    model = ddp(dist.new_group([0, 1]))
    wrong = []

    def add_up() -> None:
        for k in range(40):
            numbers = torch.full((9,), float(k))
            dist.all_reduce(numbers)
            if numbers[0] != 2 * k:
                wrong.append(k)
            time.sleep(0.001 * (rank + 1))

    thread = threading.Thread(target=add_up)
    with watching(folder, mode, model=model) as run:
        dist.barrier()
        thread.start()
        train(run, rank, 40)
        thread.join()
    return len(wrong), digest(model)


@pytest.mark.parametrize("mode", some_of(MODES, "observe"))
def test_collectives_of_a_users_thread_stay_right(mode: str, tmp_path: Path) -> None:
    first, second = run_ranks(reduce_on_a_thread, 2, tmp_path, mode)
    assert first == second
    assert first[0] == 0
    assert set(column(tmp_path, "tokens")) == {72.0}


def train_on_two_of_three(rank: int, folder: Path, mode: str, is_given: bool) -> float:
    """Ranks 0 and 1 train, rank 2 does something else."""
    trainers = dist.new_group([0, 1])
    if rank == 2:
        time.sleep(0.5)
        return 0.0
    model = ddp(trainers)
    options: dict[str, Any] = {"config": Config(live=LiveConfig(ranks=(0, 1)))} if is_given else {}
    try:
        with watching(folder, mode, model=model, **options) as run:
            train(run, rank, 16 if is_given else 9, nan_at=9)
    except TrimtabError as error:
        refusal = str(error)
        assert "live.ranks" in refusal
    return digest(model)


@pytest.mark.parametrize("mode", some_of(MODES, "protect"))
def test_only_the_ranks_of_the_given_group_are_watched(mode: str, tmp_path: Path) -> None:
    first, second, _ = run_ranks(train_on_two_of_three, 3, tmp_path, mode, True)
    assert first == second or mode == "observe"  # there NaN gets in, as without trimtab
    assert len(losses(tmp_path)) == 16
    assert set(column(tmp_path, "tokens")) == {72.0}


def test_a_world_where_not_all_train_does_not_hang_without_a_group(tmp_path: Path) -> None:
    first, second, _ = run_ranks(train_on_two_of_three, 3, tmp_path, "observe", False)
    assert first == second


def watch_before_the_group(rank: int, folder: Path, meeting: Path) -> float:
    with watching(folder / str(rank), "protect") as run:
        meet(rank, 2, meeting)
        wrapped = DistributedDataParallel(run.model)
        for step, batch in enumerate(batches(12, seed=rank)):
            loss = wrapped(batch).square().mean()
            factor = NAN if (step, rank) == (6, 1) else 1.0
            run.guard.record(loss=2.5 * factor)
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        dist.barrier()
    dist.destroy_process_group()
    return digest(run.model)


def test_a_guard_older_than_the_group_decides_with_the_others(tmp_path: Path) -> None:
    first, second = run_ranks(watch_before_the_group, 2, tmp_path, join=False)
    assert first == second


def record_oddly(rank: int, folder: Path) -> tuple[float, int]:
    with watching(folder, "protect", model=ddp()) as run:
        for step, batch in enumerate(batches(16, seed=rank)):
            if (step, rank) == (6, 1):
                run.guard.record(accuracy=torch.ones(3), phase="warm-up")
            run.step(batch, factor=NAN if step == 12 else 1.0, clip=1.0)
        twin = copy.deepcopy(run.model.module)
        hooks = sum(len(module._forward_hooks) for module in twin.modules())
    return digest(run.model), hooks


def test_an_odd_value_on_one_rank_ends_nothing_and_no_copy_is_watched(tmp_path: Path) -> None:
    first, second = run_ranks(record_oddly, 2, tmp_path)
    assert first == second  # NaN is not equal to itself
    assert first[1] == 0
    assert len(losses(tmp_path)) == 16
