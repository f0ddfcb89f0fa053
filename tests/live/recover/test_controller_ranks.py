"""A run on two ranks that recovers by itself: both probe, both go back, both end alike."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.live.recover.test_controller import ONSET, Loop, acts, events
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.core import signals
from trimtab.core.errors import RunStopped
from trimtab.decide.ladder import recompute
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.trainer.local_ranks import run_ranks


def wrap(layout: str, model: nn.Module) -> nn.Module:
    if layout == "ddp":
        return DistributedDataParallel(model)
    fully_shard(model)
    return model


def flip_on_one_rank(rank: int, loop: Loop, step: int, tick: int) -> None:
    if tick == ONSET and rank == 1:
        weight: Any = loop.plain.head.weight
        with torch.no_grad():
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            local[3, 3] = 1e30


def clean_and_flipped(layout: str, folder: Path, rank: int) -> None:
    clean = Loop(wrap=partial(wrap, layout), rank=rank).train(folder / "clean")
    flipped = Loop(partial(flip_on_one_rank, rank), partial(wrap, layout), rank)
    flipped.train(folder / "flipped")
    assert flipped.losses == clean.losses
    for one, other in zip(clean.model.parameters(), flipped.model.parameters(), strict=True):
        a, b = (t.to_local() if hasattr(t, "to_local") else t for t in (one, other))
        assert torch.equal(a, b)


def corrupt(rank: int, folder: Path, own_rank: int) -> None:
    """One rank computes a wrong gradient in one step of four, from a step on."""
    loop = Loop(wrap=partial(wrap, "ddp"), rank=own_rank)
    if own_rank == rank:
        loop.plain.head.weight.register_hook(
            lambda grad: (
                grad * 300.0 if len(loop.losses) > 60 and len(loop.losses) % 4 == 0 else grad
            )
        )
    with pytest.raises(RunStopped, match=f"rank {rank} differs from the others") as stopped:
        loop.train(folder, with_probe=True, **{"ladder.max_relaunches": 1})
    assert stopped.value.code == 75


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_computes_wrong_gradients_is_named_and_the_run_asks_for_a_relaunch(
    rank: int, tmp_path: Path
) -> None:
    run_ranks(partial(corrupt, rank, tmp_path), 2)
    assert acts(tmp_path) == ["relaunch"]
    assert recompute(RunDirectory(tmp_path).decisions)[1] == []


@pytest.mark.parametrize("layout", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_a_weight_that_flips_on_one_rank_is_restored_on_both(layout: str, tmp_path: Path) -> None:
    run_ranks(partial(clean_and_flipped, layout, tmp_path), 2)
    assert acts(tmp_path / "clean") == []
    assert acts(tmp_path / "flipped") == ["restore"]
    assert [event.facts["helped"] for event in events(tmp_path / "flipped", "check")] == [True]
    number, mismatches = recompute(RunDirectory(tmp_path / "flipped").decisions)
    assert number >= 1
    assert mismatches == []


def bad_batches(fault: str, layout: str, folder: Path, rank: int) -> None:
    """One rank has a NaN loss for three steps, or both have three batches of one token."""
    loop = Loop(wrap=partial(wrap, layout), rank=rank)
    if fault == "one token":
        data = list(loop.data)
        for place in range(ONSET, ONSET + 3):
            data[place] = torch.full_like(data[place], 7)
        loop.data = data
    elif rank == 1:
        bad = range(ONSET, ONSET + 3)
        loop.plain.head.register_forward_hook(
            lambda module, inputs, output: output * math.nan if len(loop.losses) in bad else output
        )
    loop.train(folder)
    weights = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in loop.model.parameters()]
    mine = torch.stack([weight.detach().double().sum() for weight in weights])
    other = mine.clone()
    dist.broadcast(other, src=0)
    assert torch.equal(mine, other)
    assert mine.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
@pytest.mark.parametrize("fault", ["nan", "one token"])
def test_bad_batches_stay_out_of_the_weights_of_both_ranks(
    fault: str, layout: str, tmp_path: Path
) -> None:
    run_ranks(partial(bad_batches, fault, layout, tmp_path), 2)
    assert not {"restore and skip", "lower LR", "stop"} & set(acts(tmp_path))
    if fault == "nan":
        assert acts(tmp_path) == []
        discarded = read_journal(RunDirectory(tmp_path)).block.column(signals.DISCARDED)
        assert discarded.values[ONSET : ONSET + 3].tolist() == [1.0] * 3
