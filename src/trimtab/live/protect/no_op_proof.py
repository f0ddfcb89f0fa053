"""Whether a step without gradients leaves an optimizer as it was: proven on a small copy of it.

Most optimizers pass over what has no gradient. Some raise, some count or decay all the same: their
bad steps cannot be discarded, and `watch` says so before the first one.
"""

import copy
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trimtab.live.protect.discard import Discard

MAX_PARAMETERS, MAX_ELEMENTS = 4, 2**20
"""Of the copy: the smallest parameters of each group."""


def why_not_discardable(optimizer: Optimizer) -> str | None:
    """Why a bad step of this optimizer cannot be discarded; None if it can, or cannot be tried."""
    try:
        twin = _twin(optimizer)
    except Exception:  # what cannot be copied is taken as it is, such as ZeroRedundancyOptimizer
        return None
    if twin is None:
        return None
    rng = torch.get_rng_state()
    try:
        return _try(twin)
    except Exception:  # such as a state that cannot be copied
        return None
    finally:
        torch.set_rng_state(rng)


def _try(twin: Optimizer) -> str | None:
    name = type(twin).__name__
    parameters = [p for group in twin.param_groups for p in group["params"]]
    try:
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 1e-3)
            _step(twin)
    except Exception:  # it wants more than gradients, so nothing can be said
        return None
    before = copy.deepcopy(_all_of(twin))
    discard = Discard()
    try:
        discard.via_missing_grads(twin)
        _step(twin)
    except Exception as error:
        return f"{name} cannot step without gradients ({type(error).__name__}: {error})"
    finally:
        discard.undo(twin)
    if not _are_equal(before, _all_of(twin)):
        return f"{name} changes weights or state in a step without gradients"
    return None


def _twin(optimizer: Optimizer) -> Optimizer | None:
    """A small optimizer of the same kind with the same settings; None if that makes no sense."""
    if type(optimizer).__module__.startswith("torch.distributed"):
        return None  # its step is a collective
    groups = []
    for group in optimizer.param_groups:
        chosen = sorted(group["params"], key=lambda p: p.numel())[:MAX_PARAMETERS]
        if any(isinstance(p, DTensor) or p.device.type == "meta" for p in chosen):
            return None
        if sum(p.numel() for p in chosen) > MAX_ELEMENTS:
            return None
        settings = {k: copy.deepcopy(v) for k, v in group.items() if k != "params"}
        copies = [p.detach().clone().requires_grad_(p.requires_grad) for p in chosen]
        groups.append({"params": copies, **settings})
    twin = copy.copy(optimizer)
    vars(twin).update(
        {
            name: copy.deepcopy(value)
            for name, value in vars(optimizer).items()
            if name not in ("state", "param_groups", "step") and not name.startswith("_optimizer_")
        }
    )
    vars(twin).pop("step", None)  # a scheduler's wrapper would step the real one
    twin.state = defaultdict(dict)
    twin.param_groups = groups
    for name, value in vars(optimizer).items():
        if name.startswith("_optimizer_"):
            vars(twin)[name] = OrderedDict() if isinstance(value, dict) else value
    return twin


def _step(optimizer: Optimizer) -> None:
    type(optimizer).step(optimizer)


def _all_of(optimizer: Optimizer) -> list[Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    state = [optimizer.state.get(p) for p in parameters]
    shared = {k: v for k, v in optimizer.state.items() if not isinstance(k, torch.Tensor)}
    return [[p.detach() for p in parameters], settings, state, shared]


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same_kind = one.shape == other.shape and one.dtype == other.dtype
        return same_kind and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    try:
        return bool(one == other) or one is other or type(one) is type(other) is object
    except Exception:  # what cannot be compared is not counted against it
        return True
