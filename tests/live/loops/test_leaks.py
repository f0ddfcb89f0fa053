"""Memory, threads and handles do not grow with the steps."""

import gc
import random
import threading
from pathlib import Path

import torch
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import live_tensors, watching
from torch import nn


def growth(counts: list[int]) -> int:
    """By how much the last count is above the first after the start."""
    return counts[-1] - counts[1]


def test_gradients_missing_at_changing_places_keep_no_memory(tmp_path: Path) -> None:
    choice = random.Random(0)
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(60))
    counts = []
    with watching(tmp_path, model=model) as run:
        for step in range(200):
            for parameter in model.parameters():
                dropped = choice.random() < 0.1
                parameter.grad = None if dropped else torch.ones_like(parameter)
            run.guard.record(loss=1.0)
            run.optimizer.step()
            run.optimizer.zero_grad()
            if step % 60 == 59:
                counts.append(live_tensors())
    assert growth(counts) < 20


def test_a_graph_kept_by_backward_is_not_kept_longer(tmp_path: Path) -> None:
    counts = []
    with watching(tmp_path) as run:
        parameters = list(run.model.parameters())
        for step, batch in enumerate(batches(100)):
            loss = loss_of(run.model, batch)
            run.guard.record(loss=loss)
            # autograd.grad and not backward(create_graph=True), which warns of a cycle of its own
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            run.optimizer.step()
            for parameter in parameters:
                parameter.grad = None
            del loss, gradients, gradient
            if step % 30 == 29:
                counts.append(live_tensors())
    assert growth(counts) < 20


def test_a_closed_guard_keeps_nothing_alive(tmp_path: Path) -> None:
    before = live_tensors(), threading.active_count(), handles()
    for k in range(3):
        with watching(tmp_path / str(k), "protect") as run:
            run.train(5)
    del run
    gc.collect()
    after = live_tensors(), threading.active_count(), handles()
    assert after[0] <= before[0] + 5
    assert after[1:] <= (before[1], before[2] + 1)


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
