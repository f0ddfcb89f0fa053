"""Several ranks undo at the same update, whichever of them was harmed."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import one_of_each, some_of
from tests.kit.launch import run_ranks
from tests.kit.undo import flip_bit, refusals, undos
from tests.kit.user_loop import watching
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.live.recover.undo import Undo
from trimtab.state.host_copy import local

STEPS, AT = 40, 25


def flip(model: nn.Module, optimizer: Any) -> None:
    flip_bit(next(model.parameters()), 27)


def flip_moment(model: nn.Module, optimizer: Any) -> None:
    flip_bit(optimizer.state[next(model.parameters())]["exp_avg_sq"], 28)


def lose(model: nn.Module, optimizer: Any) -> None:
    weight = local(next(model.parameters()).detach())
    weight.detach().numpy().reshape(-1)[3] = np.nan


def ask(model: nn.Module, optimizer: Any) -> None:
    """Asks for an undo on the first rank; see `body`."""


def body(
    layout: str,
    harm: Any,
    on: int,
    folder: Path,
    rank: int,
    make: Any = optim.AdamW,
    steps: int = STEPS,
) -> list[list[float]]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    if layout == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    generator = torch.Generator().manual_seed(rank)
    seen = []
    with watching(folder, "recover", model=model, make=partial(make, lr=1e-2)) as run:
        for number in range(steps):
            loss = model(torch.randn(4, 8, generator=generator)).square().mean()
            loss.backward()
            run.guard.record(loss=loss)
            if number == AT and rank == on and harm is not None:
                run.guard.undo(5) if harm is ask else harm(model, run.optimizer)
            run.optimizer.step()
            run.optimizer.zero_grad()
            seen.append([float(local(p.detach()).double().sum()) for p in model.parameters()])
    dist.barrier()
    return seen


@pytest.mark.parametrize(
    ("layout", "harm"), one_of_each(product(["ddp", "fsdp2"], [flip, flip_moment, lose]))
)
def test_harm_on_one_rank_is_undone_on_all(layout: str, harm: Any, tmp_path: Path) -> None:
    results = run_ranks(partial(body, layout, harm, 1, tmp_path), 2)
    assert len(undos(tmp_path)) == 1
    assert refusals(tmp_path) == []
    if layout == "ddp":  # replicas are equal again, and finite
        assert results[0][-1] == results[1][-1]
    assert np.isfinite(results[0][-1]).all()
    at = undos(tmp_path)[0].step
    for seen in results:  # each has an earlier state back, at the same step
        assert seen[at] in seen[:AT]


def test_the_first_rank_can_ask(tmp_path: Path) -> None:
    results = run_ranks(partial(body, "ddp", ask, 0, tmp_path), 2)
    (undo,) = undos(tmp_path)
    assert results[0][-1] == results[1][-1]
    assert all(seen[undo.step] in seen[:AT] for seen in results)


@pytest.mark.parametrize("layout", some_of(["ddp", "fsdp2"], "fsdp2"))
def test_healthy_ranks_are_left_alone(layout: str, tmp_path: Path) -> None:
    run_ranks(partial(body, layout, None, 0, tmp_path), 2)
    assert undos(tmp_path) == []


def test_sgd_with_momentum_on_shards(tmp_path: Path) -> None:
    """Torch has no fused SGD for DTensors, so it must keep its own form from the first step on."""
    make = partial(optim.SGD, momentum=0.9)
    results = run_ranks(partial(body, "fsdp2", flip, 1, tmp_path, make=make), 2)
    assert len(undos(tmp_path)) == 1
    assert np.isfinite(results[0][-1]).all()


def fail_to_hear(layout: str, folder: Path, rank: int) -> list[list[float]]:
    """One rank fails in the moment in which the others decide to undo."""
    receive = Undo.receive

    def failing(self: Undo, check: Any, values: Any, **facts: Any) -> None:
        if rank == 1 and values[0] > 0:
            raise RuntimeError("planted")
        receive(self, check, values, **facts)

    with mock.patch.object(Undo, "receive", failing):
        return body(layout, flip, 0, folder, rank)


def test_nothing_is_undone_if_one_rank_did_not_hear_of_it(tmp_path: Path) -> None:
    results = run_ranks(partial(fail_to_hear, "fsdp2", tmp_path), 2)
    assert undos(tmp_path) == []
    assert len(results[0]) == len(results[1])
