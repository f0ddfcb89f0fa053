"""Experiments on two ranks: no trace, and the rank that computes differently is named."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.recover.test_ranks import build, values_of
from tests.probes.loops import answers_of, drive, same_journal

from trimtab.lab.trainer.local_ranks import run_ranks


def straight_and_probed(
    layout: str, accumulate: int, probes: dict[int, tuple[str, int]], folder: Path, rank: int
) -> int:
    straight = build(layout, rank, accumulate)
    drive(straight, folder / "straight", 70, clip=1.0)
    numbers = torch.get_rng_state()
    probed = build(layout, rank, accumulate)
    steps = drive(probed, folder / "probed", 70, clip=1.0, probes=probes)
    assert probed.losses == straight.losses
    for mine, theirs in zip(values_of(probed), values_of(straight), strict=True):
        assert torch.equal(mine, theirs)
    assert probed.schedulers[0].state_dict() == straight.schedulers[0].state_dict()
    assert torch.equal(numbers, torch.get_rng_state())
    return steps


@pytest.mark.parametrize(("layout", "accumulate"), [("ddp", 2), ("fsdp2", 1)])
def test_a_probed_run_on_ranks_is_unchanged(layout: str, accumulate: int, tmp_path: Path) -> None:
    probes = {30: ("again", 5), 38: ("half", 4), 48: ("first-nonfinite", 4), 55: ("next", 6)}
    steps = run_ranks(partial(straight_and_probed, layout, accumulate, probes, tmp_path), 2)
    assert steps[0] == steps[1] > 0
    assert same_journal(tmp_path / "straight", tmp_path / "probed")
    said = [event.facts["answer"] for event in answers_of(tmp_path / "probed")]
    assert said == ["same", "none", "finite", "batch"]


def with_a_bad_rank(folder: Path, rank: int) -> Any:
    run = build("ddp", rank)
    weight = next(run.model.parameters())
    dice = random.Random(3)

    def corrupt(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 100 if rank == 1 and dice.random() < 0.3 else gradient

    weight.register_hook(corrupt)
    drive(run, folder, 50, probes={40: ("again", 5)})


def with_a_rank_that_errs_alike(factor: float, folder: Path, rank: int) -> None:
    run = build("ddp", rank)
    weight = next(run.model.parameters())
    is_bad = [False]
    weight.register_hook(lambda gradient: gradient * factor if is_bad[0] else gradient)

    def plant(guard: Any, step: Any) -> None:
        is_bad[0] = rank == 1 and step.number >= 40

    drive(run, folder, 50, probes={44: ("again", 4)}, on_step=plant)


@pytest.mark.parametrize("factor", [100.0, float("nan")])
def test_a_rank_that_errs_alike_each_time_is_named_by_exchanged_batches(
    factor: float, tmp_path: Path
) -> None:
    run_ranks(partial(with_a_rank_that_errs_alike, factor, tmp_path), 2)
    [answer] = answers_of(tmp_path)
    assert answer.facts["answer"] == "device", answer.facts["sentence"]
    assert answer.facts["facts"]["rank"] == 1


def with_a_bad_batch(folder: Path, rank: int) -> None:
    run = build("ddp", rank)
    data = list(run.loader)
    if rank == 1:
        inputs, targets = data[40]
        data[40] = (inputs * 30, targets * -30)
    run.loader = data
    drive(run, folder, 50, probes={44: ("again", 4)})


def test_a_bad_batch_of_one_rank_is_not_its_device(tmp_path: Path) -> None:
    run_ranks(partial(with_a_bad_batch, tmp_path), 2)
    [answer] = answers_of(tmp_path)
    assert answer.facts["answer"] == "same", answer.facts["sentence"]


def test_a_rank_that_errs_is_named(tmp_path: Path) -> None:
    run_ranks(partial(with_a_bad_rank, tmp_path), 2)
    [answer] = answers_of(tmp_path)
    assert answer.facts["answer"] == "device"
    assert answer.facts["facts"]["rank"] == 1
