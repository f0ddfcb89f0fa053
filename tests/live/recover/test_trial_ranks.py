"""A trial of states on several ranks: they score together, decide alike, and leave no trace."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import some_of
from tests.kit.launch import run_ranks
from tests.kit.undo import undos
from tests.kit.user_loop import events_of
from tests.live.recover.test_trial import often
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.config import Config
from trimtab.core.events import TRIAL
from trimtab.live.recover.trial_rule import TrialSchedule
from trimtab.state.host_copy import local

AT, STEPS, FEW_STEPS = 80, 125, 45


def make_model(layout: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        *(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)),
    )
    if layout == "ddp":
        return DistributedDataParallel(model)
    for module in list(model.children())[:1]:
        fully_shard(module)
    fully_shard(model)
    return model


def body(layout: str, what: str, rollback: str, folder: Path, rank: int) -> dict[str, Any]:
    """Train with accumulation; returns all bits of the end, and the sums of each step."""
    model = make_model(layout)
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    truth = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(rank)
    num_calls = 0

    def loss_of(batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def batch_loss(batch: Any) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if what == "raises on one rank" and rank == 1 and num_calls == 5:
            raise RuntimeError("planted")
        if what == "raises on all" and num_calls == 5:
            raise RuntimeError("planted")
        return loss_of(batch)

    seen = []
    torch.manual_seed(100 + rank)
    with trimtab.watch(
        model,
        optimizer,
        run_dir=folder,
        mode="recover",
        batch_loss=None if what == "missing on one rank" and rank == 1 else batch_loss,
        config=Config().override({"recover.snapshot_every": 10, "recover.rollback": rollback}),
        observer=False,
    ) as guard:
        for step in range(STEPS if what == "fault" else FEW_STEPS):
            optimizer.param_groups[0]["lr"] = (
                0.3 if what == "fault" and 0 <= step - AT < 5 else 3e-3
            )
            for _ in range(2):
                x = torch.randn(16, 8, generator=generator)
                batch = x, (x @ truth).argmax(1)
                loss = loss_of(batch)
                guard.record(loss=loss, batch=batch)
                (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append([float(local(p.detach()).double().sum()) for p in model.parameters()])
    dist.barrier()
    tensors = [*model.parameters(), *model.buffers()]
    return {
        "seen": seen,
        "bits": [local(t.detach()).numpy().tobytes() for t in tensors],
        "random": torch.get_rng_state().numpy().tobytes(),
        "calls": num_calls,
    }


def forced(layout: str, what: str, *rest: Any) -> dict[str, Any]:
    with mock.patch.object(TrialSchedule, "opens", often):
        return body(layout, what, *rest)


@pytest.mark.parametrize("layout", some_of(["ddp", "fsdp2"], "ddp"))
def test_all_ranks_restore_the_same_state_at_the_same_step(layout: str, tmp_path: Path) -> None:
    results = run_ranks(partial(body, layout, "fault", "auto", tmp_path), 2)
    (undo,) = undos(tmp_path)
    assert undo.facts["gain"] > 0.1
    restored = undo.step - undo.facts["updates_lost"] - 1
    for result in results:
        assert result["seen"][undo.step] == result["seen"][restored]
    if layout == "ddp":
        assert results[0]["seen"][-1] == results[1]["seen"][-1]


WHAT = ["closes", "raises on all", "raises on one rank", "missing on one rank"]
IN_CI = (("ddp", "closes"), ("ddp", "raises on one rank"), ("fsdp2", "raises on all"))


@pytest.mark.parametrize(("layout", "what"), some_of(product(["ddp", "fsdp2"], WHAT), *IN_CI))
def test_a_trial_that_closes_or_fails_leaves_the_bits(
    layout: str, what: str, tmp_path: Path
) -> None:
    if layout == "fsdp2" and what == "raises on one rank":
        pytest.skip("the other rank would wait in the forward pass, as in training")
    tried = run_ranks(partial(forced, layout, what, "ask", tmp_path / "tried"), 2)
    plain = run_ranks(partial(body, layout, what, "off", tmp_path / "plain"), 2)
    for one, other in zip(tried, plain, strict=True):
        assert one["bits"] == other["bits"]
        assert one["random"] == other["random"]
    closed = events_of(tmp_path / "tried", TRIAL)
    if what == "closes":
        assert closed
        assert tried[0]["calls"] >= 32
    else:
        assert closed == []
        assert tried[0]["calls"] <= 12
