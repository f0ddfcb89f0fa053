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
from tests.kit.launch import digest, meet, run_ranks, take_step
from tests.kit.tiny import batches, make_model
from tests.kit.user_loop import adamw, column, losses
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.core.errors import TrimtabError

MODES = ["observe", "protect"]
watch: Any = trimtab.watch


def build(group: Any = None) -> tuple[Any, Any]:
    model = DistributedDataParallel(make_model(), process_group=group)
    return model, adamw(model.parameters())


def save_meanwhile(rank: int, folder: Path, mode: str) -> tuple[float, int]:
    """Asynchronous checkpoints on the default group, while training has a group of its own."""
    model, optimizer = build(dist.new_group([0, 1]))
    saves = 0
    saving: Any = None
    with watch(model, optimizer, run_dir=folder / "run", mode=mode) as guard:
        for step, batch in enumerate(batches(30, seed=rank)):
            take_step(guard, model, optimizer, batch)
            time.sleep(0.002 * rank)
            if step % 10 == 0:
                if saving is not None:
                    saving.result()
                state = {"model": model.module.state_dict()}
                saving = async_save(state, checkpoint_id=folder / f"save{saves}")
                saves += 1
        saving.result()
    return digest(model), saves


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", some_of(MODES, "protect"))
def test_training_goes_on_during_an_asynchronous_save(mode: str, tmp_path: Path) -> None:
    first, second = run_ranks(save_meanwhile, 2, tmp_path, mode)
    assert first == second
    assert len(losses(tmp_path / "run")) == 30


def reduce_on_a_thread(rank: int, folder: Path, mode: str) -> tuple[int, float]:
    """A thread of the user's adds up numbers on the default group."""
    model, optimizer = build(dist.new_group([0, 1]))
    wrong = []

    def add_up() -> None:
        for k in range(40):
            numbers = torch.full((9,), float(k))
            dist.all_reduce(numbers)
            if numbers[0] != 2 * k:
                wrong.append(k)
            time.sleep(0.001 * (rank + 1))

    thread = threading.Thread(target=add_up)
    with watch(model, optimizer, run_dir=folder, mode=mode) as guard:
        dist.barrier()
        thread.start()
        for batch in batches(40, seed=rank):
            take_step(guard, model, optimizer, batch)
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
    model, optimizer = build(trainers)
    options: dict[str, Any] = {"config": Config(live=LiveConfig(ranks=(0, 1)))} if is_given else {}
    try:
        guard = watch(model, optimizer, run_dir=folder, mode=mode, **options)
    except TrimtabError as error:
        sentence = str(error)
        assert "live.ranks" in sentence
        guard = watch(model, optimizer, run_dir=folder, enabled=False)
    with guard:
        for step, batch in enumerate(batches(16, seed=rank)):
            take_step(guard, model, optimizer, batch, factor=float("nan") if step == 9 else 1.0)
            if not is_given and step == 8:
                break
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
    model = make_model()
    optimizer = adamw(model.parameters())
    with watch(model, optimizer, run_dir=folder / str(rank), mode="protect") as guard:
        meet(rank, 2, meeting)
        wrapped = DistributedDataParallel(model)
        for step, batch in enumerate(batches(12, seed=rank)):
            loss = torch.tensor(float("nan")) if (step, rank) == (6, 1) else torch.tensor(2.5)
            guard.record(loss=loss)
            wrapped(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
    dist.destroy_process_group()
    return digest(model)


def test_a_guard_older_than_the_group_decides_with_the_others(tmp_path: Path) -> None:
    first, second = run_ranks(watch_before_the_group, 2, tmp_path, join=False)
    assert first == second


def record_oddly(rank: int, folder: Path) -> float:
    model, optimizer = build()
    with watch(model, optimizer, run_dir=folder, mode="protect") as guard:
        for step, batch in enumerate(batches(16, seed=rank)):
            if (step, rank) == (6, 1):
                guard.record(accuracy=torch.ones(3), phase="warm-up")
            take_step(guard, model, optimizer, batch, factor=float("nan") if step == 12 else 1.0)
    return digest(model)


def test_an_odd_value_on_one_rank_ends_nothing(tmp_path: Path) -> None:
    first, second = run_ranks(record_oddly, 2, tmp_path)
    assert first == second  # NaN is not equal to itself
    assert len(losses(tmp_path)) == 16


def copy_on_each(rank: int, folder: Path) -> int:
    model, optimizer = build()
    with watch(model, optimizer, run_dir=folder) as guard:
        for batch in batches(4, seed=rank):
            take_step(guard, model, optimizer, batch)
        twin = copy.deepcopy(model.module)
        return sum(len(module._forward_hooks) for module in twin.modules())


def test_a_copy_is_not_watched_on_any_rank(tmp_path: Path) -> None:
    assert run_ranks(copy_on_each, 2, tmp_path) == [0, 0]
