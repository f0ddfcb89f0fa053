"""A probed run is the run that never was probed, bit by bit."""

from pathlib import Path

import pytest
import torch
from tests.kit.recovering import plain_run
from tests.kit.runs import Run
from tests.probes.loops import assert_unchanged, random_probes
from tests.state.test_exact import Noisy
from torch import optim
from torch.utils.data import DataLoader

from trimtab.probes.registry import EXPERIMENTS


def test_every_experiment_leaves_no_trace(tmp_path: Path) -> None:
    probes = {40 + 12 * place: (name, 4) for place, name in enumerate(EXPERIMENTS)}
    answers = assert_unchanged(plain_run, tmp_path, probes, until=160)
    assert [event.facts["probe"] for event in answers] == list(EXPERIMENTS)
    first = answers[0].facts
    assert first["answer"] == "same"
    assert first["steps"] > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_draw_random_numbers_accumulation_and_epochs(
    workers: int, tmp_path: Path
) -> None:
    def make() -> Run:
        data = torch.utils.data.Subset(Noisy(), range(52))  # 13 batches
        loader = DataLoader(
            data,
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        return plain_run(loader=loader, accumulate=2)

    probes = {30: ("again", 3), 34: ("half", 2), 35: ("next", 3), 48: ("again", 9), 55: ("fp32", 4)}
    answers = assert_unchanged(make, tmp_path, probes, until=70, clip=0.5)
    assert [event.facts["answer"] for event in answers[:1]] == ["same"]


def test_the_scaler_of_fp16(tmp_path: Path) -> None:
    def make() -> Run:
        run = plain_run(lambda model: optim.SGD(model.parameters(), lr=1e-2), accumulate=2)
        run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
        run.schedulers = [optim.lr_scheduler.CosineAnnealingLR(run.optimizers[0], 100)]
        return run

    probes = {30: ("again", 5), 41: ("lower-lr", 3), 52: ("restore-check", 3)}
    answers = assert_unchanged(make, tmp_path, probes, until=70)
    assert [event.facts["answer"] for event in answers] == ["same", "open", "equal"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_hundred_experiments_at_random_steps(seed: int, tmp_path: Path) -> None:
    probes = random_probes(EXPERIMENTS, 100, 30, 390, seed)
    answers = assert_unchanged(plain_run, tmp_path, probes, until=398, clip=0.5)
    assert len(answers) == 100
