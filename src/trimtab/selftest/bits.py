"""All that a run leaves, to be compared bit by bit."""

import torch
from torch import nn

from trimtab.selftest.loop import Training


def bits_of(run: Training) -> dict[str, torch.Tensor]:
    """Weights, optimizer state, losses, loss scale and random numbers, by name, on the host."""
    found = {**weights_of(run.model), **state_of(run)}
    if run.losses:
        found["losses"] = torch.stack(run.losses).float().cpu()
    if run.scaler is not None:
        found["loss scale"] = torch.tensor(run.scaler.get_scale())
    found["random state of the CPU"] = torch.get_rng_state()
    if run.device.type == "cuda":
        found["random state of the GPU"] = torch.cuda.get_rng_state(run.device)
    return found


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights by name."""
    return {
        f"weight {name}": parameter.detach().cpu().clone()
        for name, parameter in model.named_parameters()
    }


def state_of(run: Training) -> dict[str, torch.Tensor]:
    """A copy of the optimizer state by name."""
    names: dict[torch.Tensor, str] = {p: name for name, p in run.model.named_parameters()}
    return {
        f"{key} of {names[parameter]}": value.detach().cpu().clone()
        for parameter, state in run.optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def find_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> str | None:
    """The name of the first tensor that is not the same in every bit; None if all are."""
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            return f"{name} is only in one of them"
        if not _same(one[name], other[name]):
            return f"{name} differs"
    return None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # As bytes: a NaN is equal to the same NaN, and 0.0 is not -0.0.
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)
