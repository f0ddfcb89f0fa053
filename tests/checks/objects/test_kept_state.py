"""What is kept of a run is put back to the last bit, into the same tensors and containers."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.runs import OPTIMIZERS, SCHEDULERS, TinyModel, assert_same, batches, seed_all
from torch import nn, optim

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.kept_state import KeptState


def inputs_of(make: Callable[[Any], Any], schedule: Callable[[Any], Any] | None = None) -> Inputs:
    seed_all()
    model = TinyModel()
    optimizers = make(model.parameters())
    first = optimizers if isinstance(optimizers, optim.Optimizer) else optimizers[0]
    return Inputs(model, optimizers, scheduler=schedule and schedule(first))


def train(inputs: Inputs, first: int, last: int) -> None:
    for features, targets in batches(last)[first:]:
        loss = nn.functional.mse_loss(inputs.model(features), targets)
        loss.backward()
        for optimizer in inputs.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        for scheduler in inputs.schedulers:
            plateau = isinstance(scheduler, optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*((loss.item(),) if plateau else ()))


def state(inputs: Inputs) -> Any:
    """Everything that training depends on, read without the code that is tested."""
    model = inputs.model
    found = {
        "model": model.state_dict() | dict(model.named_buffers()),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "trained": [p.requires_grad for p in model.parameters()],
        "optimizers": [optimizer.state_dict() for optimizer in inputs.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in inputs.schedulers],
        "random": [random.getstate(), np.random.get_state(), torch.get_rng_state()],  # noqa: NPY002
    }
    return copy.deepcopy(found)


def places(inputs: Inputs) -> list[int]:
    """Where the tensors and containers are that others may refer to."""
    optimizer = inputs.optimizers[0]
    found = [id(t) for held in optimizer.state.values() for t in held.values()]
    found += [id(p) for p in inputs.model.parameters()] + [id(g) for g in optimizer.param_groups]
    return found + [p.data_ptr() for p in inputs.model.parameters()]


def disturb(inputs: Inputs) -> None:
    """Change what training does not."""
    group = inputs.optimizers[0].param_groups[0]
    group["weight_decay"] = 3.0
    inputs.model.get_submodule("head").requires_grad_(False)
    inputs.model.eval()
    inputs.optimizers[0].add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    random.random()


def muon_beside_adamw(parameters: Any) -> list[optim.Optimizer]:
    given = list(parameters)
    matrices = [p for p in given if p.dim() == 2 and len(p) > 1]
    others = [p for p in given if all(p is not matrix for matrix in matrices)]
    return [optim.Muon(matrices, lr=1e-3), optim.AdamW(others, lr=1e-2)]


SETUPS: dict[str, tuple[Any, Any]] = {name: (make, None) for name, make in OPTIMIZERS.items()}
SETUPS |= {name: (OPTIMIZERS["adamw"], make) for name, make in SCHEDULERS.items()}
if hasattr(optim, "Muon"):
    SETUPS["two optimizers"] = (muon_beside_adamw, None)


@pytest.mark.parametrize("steps", [0, 7])
@pytest.mark.parametrize("name", SETUPS)
def test_every_bit_comes_back_into_the_same_tensors(name: str, steps: int) -> None:
    inputs = inputs_of(*SETUPS[name])
    train(inputs, 0, steps)
    kept, before, at = KeptState(inputs), state(inputs), places(inputs)
    digest = kept.digest()
    for _ in range(2):
        train(inputs, steps, steps + 5)
        disturb(inputs)
        assert kept.digest() != digest
        kept.restore()
        assert_same(before, state(inputs))
        assert places(inputs) == at
        assert kept.digest() == digest
