"""The paired probe: what it reads, and that it leaves no trace."""

import logging
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.kit.runs import TinyModel, batches, seed_all
from torch import nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.live.measure.activations import Activations
from trimtab.live.recover.paired_probe import PairedProbe
from trimtab.state.rng import equal, get_random_state

CPU = torch.device("cpu")


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


class Loop:
    """A loop that may be probed after any step."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module] = lambda model: model) -> None:
        seed_all()
        self.model = wrap(TinyModel())
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)
        world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.data = batches(60 * world)[rank::world]
        self.losses: list[float] = []
        self.probe = PairedProbe(self.model, partial(loss_of, self.model), self._reduce, CPU)

    def train(self, until: int, probe_at: tuple[int, ...] = ()) -> list[float]:
        readings = []
        for step in range(len(self.losses), until):
            loss = loss_of(self.model, self.data[step])
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
            if step in probe_at:
                readings.append(self.read(range(step - 7, step + 1)))
        return readings

    def read(self, steps: range) -> float:
        trained = torch.tensor([self.losses[step] for step in steps])
        trained = self._reduce(trained) / (dist.get_world_size() if dist.is_initialized() else 1)
        found = self.probe.read(
            {step: [self.data[step]] for step in steps},
            dict(zip(steps, trained.tolist(), strict=True)),
        )
        assert found is not None
        return found.value

    def state(self) -> list[torch.Tensor]:
        values = [*self.model.parameters(), *self.model.buffers()]
        values += [v for p in self.model.parameters() for v in self.optimizer.state[p].values()]
        return [v.to_local() if hasattr(v, "to_local") else v for v in values]

    @staticmethod
    def _reduce(values: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            dist.all_reduce(values)
        return values


def compare(wrap: Callable[[nn.Module], nn.Module] = lambda model: model) -> list[float]:
    plain, probed = Loop(wrap), Loop(wrap)
    seed_all()
    plain.train(40)
    generator = torch.get_rng_state()
    seed_all()
    readings = probed.train(40, probe_at=(10, 11, 20, 35))
    assert torch.equal(generator, torch.get_rng_state())
    assert plain.losses == probed.losses
    for one, other in zip(plain.state(), probed.state(), strict=True):
        assert torch.equal(one, other)
    return readings


def test_a_probed_run_is_bit_identical_with_dropout_and_batchnorm() -> None:
    assert all(map(math.isfinite, compare()))


def test_random_numbers_of_python_and_numpy_are_put_back() -> None:
    loop = Loop()

    def batch_loss(batch: Any) -> torch.Tensor:
        return torch.tensor(random.random() + np.random.rand())  # noqa: NPY002

    probe = PairedProbe(loop.model, batch_loss, Loop._reduce, CPU)
    before = get_random_state()
    probe.read({0: [0]}, {0: 0.0})
    assert equal(before, get_random_state())


def on_ranks(layout: str, rank: int) -> list[float]:
    def wrap(model: nn.Module) -> nn.Module:
        if layout == "fsdp2":
            fully_shard(model.get_submodule("inner"))
            fully_shard(model)
            return model
        return DistributedDataParallel(
            model, static_graph=layout == "ddp-static", find_unused_parameters="unused" in layout
        )

    return compare(wrap)


@pytest.mark.parametrize("layout", ["ddp", "ddp-static", "ddp-unused", "fsdp2"])
def test_a_probed_run_on_two_ranks_is_bit_identical(layout: str) -> None:
    one, other = run_ranks(partial(_call, layout), 2)
    assert one == other


def _call(layout: str, rank: int) -> list[float]:
    return on_ranks(layout, rank)


def test_gradients_modes_and_hooks_stay_as_they_were() -> None:
    loop = Loop()
    loop.train(10)
    model = loop.model
    loss_of(model, loop.data[0]).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.eval()
    activations = Activations(nn.Sequential(*(nn.Linear(2, 2) for _ in range(2))), CPU)
    activations._buffer.values.fill_(3.0)
    activations.arm()
    loop.probe = PairedProbe(
        model, partial(loss_of, model), Loop._reduce, CPU, activations=activations
    )
    loop.read(range(8))
    assert not model.training
    assert activations._buffer.is_armed
    assert (activations._buffer.values == 3.0).all()
    for before, parameter in zip(gradients, model.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.equal(before, parameter.grad)


def test_it_runs_in_training_mode_with_gradients() -> None:
    loop = Loop()
    seen = []

    def batch_loss(batch: Any) -> torch.Tensor:
        seen.append((loop.model.training, torch.is_grad_enabled()))
        return torch.zeros(())

    loop.model.eval()
    probe = PairedProbe(loop.model, batch_loss, Loop._reduce, CPU)
    with torch.no_grad():
        probe.read({0: [0]}, {0: 0.0})
    assert seen == [(True, True)]


def test_broken_weights_read_far_above_healthy_ones() -> None:
    loop = Loop()
    (healthy,) = loop.train(30, probe_at=(29,))
    with torch.no_grad():
        loop.model.get_parameter("inner.weight").mul_(100)
        loop.model.get_parameter("head.weight").mul_(100)
    broken = loop.read(range(22, 30))
    assert broken > healthy + 1
    with torch.no_grad():
        loop.model.get_parameter("head.weight").fill_(math.nan)
    assert math.isnan(loop.read(range(22, 30)))


def test_a_loss_function_that_raises_ends_probing_and_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop()

    def batch_loss(batch: Any) -> torch.Tensor:
        raise KeyError("labels")

    probe = PairedProbe(loop.model, batch_loss, Loop._reduce, CPU)
    with caplog.at_level(logging.ERROR, logger="trimtab"):
        assert probe.read({0: [0]}, {0: 0.0}) is None
    assert probe.has_failed
    assert "batch_loss raised on this rank" in caplog.text


def test_a_step_of_several_batches_counts_by_their_mean() -> None:
    loop = Loop()
    probe = PairedProbe(loop.model, lambda batch: torch.tensor(batch), Loop._reduce, CPU)
    found = probe.read({4: [1.0, 3.0], 5: [5.0, 5.0]}, {4: 1.5, 5: 4.0})
    assert found is not None
    assert found.value == pytest.approx(0.75)
    assert found.num_batches == 2


def read_with_a_gap(rank: int) -> list[object]:
    """A reading on two ranks of which the second no longer has the batch; then one with it."""
    probe = PairedProbe(nn.Linear(1, 1), lambda batch: torch.tensor(batch), _sum_over_ranks, CPU)
    first = probe.read({4: [1.0 if rank == 0 else None]}, {4: 1.0})
    second = probe.read({4: [1.0]}, {4: 0.5})
    return [first, second and second.value, probe.has_failed]


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(values)
    return values


def test_a_rank_without_the_batch_does_not_leave_the_others_waiting() -> None:
    assert run_ranks(read_with_a_gap, 2) == [[None, 0.5, False]] * 2
