"""Models that are spread over ranks without DTensors: pipeline stages, experts, FSDP1."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.launch import log_of_trimtab, run_ranks
from tests.kit.tiny import batches, journal_of, loss_of
from tests.kit.user_loop import NAN, adamw, column, discarded_steps, take_step
from tests.live.loops.ranks.one_process import norms_of_one_process, plain_model
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.errors import TrimtabError

STEPS = 10
BAD = 6


class FirstStage(nn.Module):
    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.embed = whole.embed
        self.blocks = whole.blocks

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return x


class LastStage(nn.Module):
    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.head = whole.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(x)
        return result


def train_in_stages(rank: int, folder: Path, mode: str, bad: int | None) -> bool:
    """Each rank holds a stage of its own, in plain tensors; every rank records."""
    model: Any = FirstStage(plain_model()) if rank == 0 else LastStage(plain_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    with trimtab.watch(model, optimizer, run_dir=folder, mode=mode) as guard:
        for step, batch in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            value = torch.zeros(())
            if rank == 0:
                hidden = model(batch[:, :-1])
                dist.send(hidden.detach(), 1)
                gradient = torch.empty_like(hidden)
                dist.recv(gradient, 1)
                hidden.backward(gradient)
            else:
                hidden = torch.empty(4, 8, 16)
                dist.recv(hidden, 0)
                hidden.requires_grad_()
                logits = model(hidden).flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
                loss.backward()
                value = loss.detach().clone()
                dist.send(hidden.grad, 0)  # type: ignore[arg-type]
            dist.broadcast(value, 1)
            guard.record(loss=value, tokens=batch.numel())
            if step == bad and rank == 1:
                model.head.weight.grad.fill_(NAN)
            optimizer.step()
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_the_norm_of_pipeline_stages_is_that_of_one_process(tmp_path: Path) -> None:
    run_ranks(train_in_stages, 2, tmp_path, "observe", None)
    expected = norms_of_one_process(batches(STEPS))
    assert column(tmp_path, "grad_norm") == pytest.approx(expected, rel=1e-5)


def test_a_nan_in_one_stage_is_kept_out_of_both(tmp_path: Path) -> None:
    assert all(run_ranks(train_in_stages, 2, tmp_path, "protect", BAD))
    assert discarded_steps(tmp_path) == [BAD]


def train_experts(rank: int, folder: Path) -> tuple[float, list[str]]:
    """Different experts under the same name, in plain tensors; the rest is averaged by hand."""
    model = plain_model()
    torch.manual_seed(rank)
    model.blocks[0].attention = nn.Linear(16, 16, bias=False)
    own = list(model.blocks[0].attention.parameters())
    shared = [p for p in model.parameters() if all(p is not other for other in own)]
    optimizer = adamw(model.parameters())
    true = torch.zeros(())
    with (
        log_of_trimtab() as said,
        trimtab.watch(model, optimizer, run_dir=folder) as guard,
    ):
        for step, batch in enumerate(batches(STEPS, seed=rank)):
            loss = loss_of(model, batch)
            guard.record(loss=loss, tokens=batch.numel())
            optimizer.zero_grad()
            loss.backward()
            for parameter in shared:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
            if step == 5:
                true = torch.stack([p.grad.square().sum() for p in own]).sum()
                dist.all_reduce(true)
                true += torch.stack([p.grad.square().sum() for p in shared]).sum()
            optimizer.step()
    return float(true.sqrt()), said


def test_experts_under_one_name_have_the_true_norm_or_none(tmp_path: Path) -> None:
    (true, said), _ = run_ranks(train_experts, 2, tmp_path)
    norms = journal_of(tmp_path).column("grad_norm")
    if norms.present[5] and not any("norm" in sentence for sentence in said):
        assert norms.values[5] == pytest.approx(true, rel=1e-5)


def clip_fsdp1(rank: int, folder: Path, by_guard: bool) -> Any:
    model = FullyShardedDataParallel(plain_model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    norms = []
    guard = trimtab.watch(model, optimizer, run_dir=folder, enabled=by_guard)
    with guard:
        for batch in batches(STEPS, seed=rank):
            loss = 20 * loss_of(model, batch)
            guard.record(loss=loss, tokens=batch.numel())
            optimizer.zero_grad()
            loss.backward()
            if by_guard:
                try:
                    norm = guard.clip_grad_norm_(1.0)
                except TrimtabError as error:
                    return str(error)
            else:
                norm = model.clip_grad_norm_(1.0)
            norms.append(float(norm))
            optimizer.step()
    return norms


@pytest.mark.filterwarnings("ignore")
def test_fsdp1_is_clipped_by_the_norm_of_all_shards_or_refused(tmp_path: Path) -> None:
    true, _ = run_ranks(clip_fsdp1, 2, tmp_path, False)
    first, second = run_ranks(clip_fsdp1, 2, tmp_path, True)
    assert first == second
    if isinstance(first, str):
        assert "clip_grad_norm_" in first
    else:
        assert first == pytest.approx(true, rel=1e-4)


class Experts(nn.Module):
    """Each batch goes through one of four blocks."""

    def __init__(self) -> None:
        super().__init__()
        whole = plain_model()
        self.embed, self.head = whole.embed, whole.head
        self.experts = nn.ModuleList(plain_model().blocks[0] for _ in range(4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        chosen = self.experts[int(tokens.sum()) % 4]
        result: torch.Tensor = self.head(chosen(self.embed(tokens)))
        return result


def train_routed(rank: int, folder: Path) -> None:
    model = DistributedDataParallel(Experts(), find_unused_parameters=True)
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=folder) as guard:
        for batch in batches(41, seed=rank):
            take_step(guard, optimizer, loss_of(model, batch), tokens=batch.numel())


def test_an_expert_without_a_token_has_no_activation(tmp_path: Path) -> None:
    run_ranks(train_routed, 2, tmp_path)
    block = journal_of(tmp_path)
    seen = [
        value
        for name, signal in block.columns.items()
        if name.startswith("activation_rms/")
        for value in signal.values[signal.present]
    ]
    assert seen
    assert min(seen) > 0.5  # the embedding's values are about 1
