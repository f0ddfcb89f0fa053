"""Rollbacks on several ranks: the first one orders, all return at the same boundary."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.recovering import drive, real
from tests.kit.runs import FEATURES, Run, batches, seed_all
from tests.kit.tiny import journal_of
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab.core.errors import RestoreError
from trimtab.lab.trainer.local_ranks import RankFailed, run_ranks


def build(layout: str, rank: int, accumulate: int = 1) -> Run:
    seed_all()
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1)
    )
    if layout == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    return Run(
        model=model,
        optimizers=[optimizer],
        loader=batches(800)[rank::2],
        schedulers=[optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)],
        accumulate=accumulate,
    )


def values_of(run: Run) -> list[torch.Tensor]:
    optimizer = run.optimizers[0]
    tensors = [*run.model.parameters()]
    tensors += [t for p in run.model.parameters() for t in optimizer.state[p].values()]
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]


def straight_and_back(
    layout: str, lag: int, accumulate: int, back: dict[int, int], folder: Path, rank: int
) -> Any:
    settings = {"lag_steps": lag}
    straight = build(layout, rank, accumulate)
    drive(straight, folder / "straight", 70, settings=settings, clip=1.0)
    returned = build(layout, rank, accumulate)
    shares = []

    def look(guard: Any, step: int) -> None:
        if step == 55:
            slots = guard.recovery.snapshots.ring.kept
            whole = sum(t.nbytes for t in values_of(returned))
            shares.append(slots[-1].num_bytes / whole)

    # The call of the first rank counts; the others' are no harm.
    attempts = drive(
        returned, folder / "returned", 70, back=back, settings=settings, clip=1.0, on_step=look
    )
    assert attempts == len(back)
    assert returned.losses == straight.losses
    for mine, theirs in zip(values_of(returned), values_of(straight), strict=True):
        assert torch.equal(mine, theirs)
    assert returned.schedulers[0].state_dict() == straight.schedulers[0].state_dict()
    return shares[0]


@pytest.mark.parametrize(
    ("layout", "lag", "accumulate", "back"),
    [
        ("ddp", 2, 1, {60: 45}),
        ("fsdp2", 2, 2, {60: 45}),
        pytest.param("ddp", 0, 2, {30: 0, 60: 40, 65: 20}, marks=pytest.mark.slow),
        pytest.param("ddp", 5, 1, {30: 10, 50: 40}, marks=pytest.mark.slow),
        pytest.param("fsdp2", 0, 1, {30: 0, 60: 40, 65: 20}, marks=pytest.mark.slow),
        pytest.param("fsdp2", 5, 1, {30: 10, 50: 40}, marks=pytest.mark.slow),
    ],
)
def test_ranks_return_together_and_exactly(
    layout: str, lag: int, accumulate: int, back: dict[int, int], tmp_path: Path
) -> None:
    shares = run_ranks(partial(straight_and_back, layout, lag, accumulate, back, tmp_path), 2)
    if layout == "ddp":  # each rank keeps its part
        assert sum(shares) == pytest.approx(1.0, abs=0.15)
        assert max(shares) < 0.8
    block = journal_of(tmp_path / "returned")
    assert int(block.attempt[-1]) == len(back)
    # The order travels: one step to the meeting, `lag` more to the hosts.
    events = [event for event in block.events if event.kind == "rollback"]
    assert events[-1].facts["from"] == max(back) + lag + 1
    report = trimtab.diagnose(tmp_path / "returned")
    assert real(one.incident for one in report.incidents) == []


def skip_and_hold(folder: Path, rank: int) -> Any:
    run = build("ddp", rank)
    rates = []

    def release(guard: Any, step: int) -> None:
        rates.append(run.optimizers[0].param_groups[0]["lr"])
        if step == 60 and rank == 0:
            guard.release()

    options: dict[str, Any] = {}
    if rank == 0:
        options = {"skip": [41, 45], "hold": ["lr", "betas"], "reason": "to test"}
    drive(run, folder, 70, back={50: 40}, on_step=release, **options)
    return [t.tolist() for t in values_of(run)]


def test_skips_and_holds_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    one, other = run_ranks(partial(skip_and_hold, tmp_path), 2)
    assert one == other
    block = journal_of(tmp_path)
    again = block[int((block.attempt == 0).sum()) :]
    assert [p for p in (41, 45) if p in again.data_position] == []
    held = again.column("planned_lr").present
    # Held until the release of step 60 has reached all ranks.
    assert held[: 60 - 40].all()
    assert not held[60 - 40 + 5 :].any()
    assert len(set(again.column("lr").values[:20])) == 1


def one_rank_ahead(folder: Path, rank: int) -> None:
    run = build("ddp", rank)

    def part(guard: Any, step: int) -> None:
        if step == 20 and rank == 1:
            guard.recovery.attempt += 1
            guard.recovery._rank_orders.set(attempt=1, minus_attempt=-1)

    drive(run, folder, 40, on_step=part)


def test_ranks_in_different_attempts_are_stopped(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="different attempts") as caught:
        run_ranks(partial(one_rank_ahead, tmp_path), 2)
    assert RestoreError.__name__ in str(caught.value)


def one_rank_without_snapshots(folder: Path, rank: int) -> int:
    run = build("ddp", rank)

    def fail(guard: Any, step: int) -> None:
        if step == 30 and rank == 1:
            guard.recovery.snapshots.ring.take = None  # calling it raises

    return drive(run, folder, 70, back={60: 45}, on_step=fail)


def test_a_rank_that_cannot_go_back_keeps_the_others_from_it(tmp_path: Path) -> None:
    assert run_ranks(partial(one_rank_without_snapshots, tmp_path), 2) == [0, 0]


def keep_one(folder: Path, rank: int) -> list[int]:
    run = build("ddp", rank)
    kept: list[int] = []

    def look(guard: Any, step: int) -> None:
        snapshots = guard.recovery.snapshots
        if step == 25 and rank == 0:
            snapshots.keep_before(23)
        kept[:] = [slot.step for slot in snapshots.ring.kept]

    drive(run, folder, 120, on_step=look, settings={"oldest_steps": 20})
    return kept


def test_a_snapshot_that_the_first_rank_needs_stays_on_all_ranks(tmp_path: Path) -> None:
    one, other = run_ranks(partial(keep_one, tmp_path), 2)
    assert one == other
    assert 20 in one


def positions_served(folder: Path, rank: int) -> list[int]:
    run = build("ddp", rank)
    own = folder / str(rank)
    with trimtab.watch(
        run.model, run.optimizers, run_dir=own, mode="recover", state={"scheduler": run.schedulers}
    ) as guard:
        return [step.data_position for step in guard.steps(range(8))]


def test_the_quarantine_of_the_first_rank_holds_on_ranks_that_cannot_see_its_file(
    tmp_path: Path,
) -> None:
    home = tmp_path / "0" / "trimtab"
    home.mkdir(parents=True)
    (home / "quarantine.jsonl").write_text('{"first": 3, "last": 5}\n')
    assert run_ranks(partial(positions_served, tmp_path), 2) == [[0, 1, 2, 6, 7]] * 2
