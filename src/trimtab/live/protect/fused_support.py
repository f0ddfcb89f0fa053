"""How an optimizer can be kept from moving: by a flag on the device, or by missing gradients.

A fused optimizer of torch leaves parameters, moments and step counter alone if its `found_inf` is
exactly 1. The foreach and for-loop forms refuse the flag, so they are promoted to the fused one:
the same arithmetic in one kernel, equal within rounding and faster. Promotion is tried on the real
parameters with the flag set, which changes nothing. `_step_supports_amp_scaling` stays as it is:
GradScaler, Lightning and Accelerate go by it.

Any other optimizer must leave everything as it was in a step without gradients (`no_op_proof`).
"""

import functools
import inspect
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from trimtab.live.protect.discard import Discard
from trimtab.live.shield import log
from trimtab.state.host_copy import local
from trimtab.state.sharded_types import is_dtensor
from trimtab.state.training_state import parameters_of

FUSED_KINDS = (AdamW, Adam, SGD, Adagrad)
"""What has a fused form; the first that fits counts."""

_FUSED_CHECK = "_need_device_dtype_check_for_fused"
"""What torch itself leaves on an optimizer when its fused form runs."""


class FusedSupport:
    """Knows the forms of the watched optimizers; promotes them and undoes it at the end."""

    def __init__(self, *, promote: bool) -> None:
        self._promotes = promote
        self.promoted: list[str] = []
        """The optimizers that were made fused, by name, until that is reported."""
        self._originals: dict[Optimizer, _Original] = {}
        self._unfit: set[Optimizer] = set()
        self._obedient: dict[tuple[Optimizer, int], bool] = {}

    def reads_flag(self, optimizer: Optimizer) -> bool:
        """Whether the present update can be withheld by a flag on the device.

        Asked when there are gradients; promotes the optimizer if that is all it takes.
        """
        if optimizer in self._originals:
            if _has_sparse_gradient(optimizer):
                self._revert(optimizer)
            elif _has_partial_momentum(optimizer):
                self._revert(optimizer)
                log.warning(
                    "trimtab: %s runs unfused again: torch's fused form cannot take parameters "
                    "without momentum, such as unfrozen ones",
                    type(optimizer).__name__,
                )
        # Asked at every step: loading a checkpoint puts the saved form back in place.
        if not _is_fused(optimizer) and not self._promote(optimizer):
            return False
        return self._obeys(optimizer) and not _lacks_momentum(optimizer)

    def may_read_flag(self, optimizer: Optimizer) -> bool:
        """Whether it can be expected to, before there are gradients."""
        is_fused = _is_fused(optimizer)
        return is_fused or (self._promotes and type(optimizer) in FUSED_KINDS and _fits(optimizer))

    def undo(self) -> None:
        """Give every optimizer the form back that it came with."""
        for optimizer, found in self._originals.items():
            found.restore(optimizer)
        self._originals.clear()

    def _promote(self, optimizer: Optimizer) -> bool:
        if not self._promotes or optimizer in self._unfit or type(optimizer) not in FUSED_KINDS:
            return False
        if _lacks_momentum(optimizer) and _is_sharded(optimizer):
            return False  # until it can be tried: torch 2.13 has no fused SGD for DTensors
        is_new = optimizer not in self._originals
        if is_new:
            self._originals[optimizer] = _Original(optimizer)
        optimizer.defaults.update(fused=True, foreach=False)
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=False)
            _move_counters(optimizer, group, to_device=True)
        if not _fits(optimizer) or not self._obeys(optimizer) or (is_new and not _runs(optimizer)):
            self._revert(optimizer)
            return False
        if is_new:
            self.promoted.append(type(optimizer).__name__)
        return True

    def _revert(self, optimizer: Optimizer) -> None:
        self._unfit.add(optimizer)
        self._originals.pop(optimizer).restore(optimizer)

    def _obeys(self, optimizer: Optimizer) -> bool:
        key = (optimizer, len(optimizer.param_groups))  # parameters come in groups
        if key not in self._obedient:
            self._obedient[key] = _obeys(optimizer)
        return self._obedient[key]


class _Original:
    """The form that an optimizer came with."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._defaults = _form(optimizer.defaults)
        self._groups = [_form(group) for group in optimizer.param_groups]
        self._attributes = set(vars(optimizer))
        self._handle = optimizer.register_state_dict_post_hook(self._as_found)

    def restore(self, optimizer: Optimizer) -> None:
        self._handle.remove()
        if _FUSED_CHECK not in self._attributes:
            vars(optimizer).pop(_FUSED_CHECK, None)
        optimizer.defaults.update(self._defaults)
        for place, group in enumerate(optimizer.param_groups):
            group.update(self._form_of(place))
            if not group["fused"] and not group.get("capturable"):
                _move_counters(optimizer, group, to_device=False)

    def _as_found(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        """A checkpoint shows the form that the user chose."""
        for place, group in enumerate(saved["param_groups"]):
            group.update(self._form_of(place))

    def _form_of(self, place: int) -> dict[str, Any]:
        # A group that was added later has the form of the defaults.
        return self._groups[place] if place < len(self._groups) else self._defaults


def _form(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("fused", "foreach")}


def _is_fused(optimizer: Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)


def _fits(optimizer: Optimizer) -> bool:
    """Whether the fused form takes such settings and parameters, and gets them right."""
    return not _has_sparse_gradient(optimizer) and all(
        not group["differentiable"]
        and all(p.is_floating_point() for p in group["params"])
        and not _is_unsound(group)
        for group in optimizer.param_groups
    )


def _is_unsound(group: dict[str, Any]) -> bool:
    """Whether the fused form computes with uninitialized memory.

    In torch 2.13 SGD with momentum does, in half precision on the CPU: the same run ends elsewhere
    each time, now and then at infinity.
    """
    return bool(group.get("momentum")) and any(
        local(p).device.type == "cpu" and p.dtype in (torch.bfloat16, torch.float16)
        for p in group["params"]
    )


def _runs(optimizer: Optimizer) -> bool:
    """Try the fused form on the real parameters: with the flag at 1 it changes nothing."""
    if _lacks_momentum(optimizer):
        return True  # it would fill its momentum with noise; that step goes the other way
    parameters = parameters_of([optimizer])
    had_state = {p for p in parameters if optimizer.state.get(p)}
    device = local(parameters[0]).device
    discard = Discard()
    try:
        flag = torch.ones((), dtype=torch.float32, device=device)
        discard.via_found_inf(optimizer, flag, None)
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)
    except Exception:  # such as parameters of which some are sharded and some are not
        return False
    finally:
        discard.undo(optimizer)
        for parameter in parameters:
            if parameter not in had_state:
                optimizer.state.pop(parameter, None)
    return True


def _has_sparse_gradient(optimizer: Optimizer) -> bool:
    """Whether there is a gradient that only the other forms take; Adam takes none at all."""
    return not isinstance(optimizer, Adam) and any(
        parameter.grad is not None and parameter.grad.is_sparse
        for parameter in parameters_of([optimizer])
    )


def _obeys(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer of this kind leaves parameters of this kind alone by the flag."""
    kind = next((kind for kind in FUSED_KINDS if isinstance(optimizer, kind)), None)
    if kind is None:
        return False
    # A subclass that has kept torch's own step hands the flag on; one of its own may not.
    if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(kind.step):
        return False
    kinds = {(p.device, p.dtype) for p in parameters_of([optimizer])}
    return all(_is_obedient(kind, device, dtype) for device, dtype in kinds)


@functools.cache
def _is_obedient(kind: type[Optimizer], device: torch.device, dtype: torch.dtype) -> bool:
    """Try it on one number: with this torch, on this device, in this precision."""
    number = torch.ones(1, device=device, dtype=dtype, requires_grad=True)
    moved = []
    try:
        optimizer: Any = kind([number], lr=0.5, fused=True)  # type: ignore[call-arg]
        for flag, gradient in ((0.0, 1.0), (1.0, float("nan"))):
            before = number.detach().clone()
            number.grad = torch.full_like(number, gradient)
            optimizer.found_inf = torch.full((), flag, dtype=torch.float32, device=device)
            optimizer.step()
            moved.append(not torch.equal(number.detach(), before))
    except Exception:  # whatever it is: such an optimizer is protected in the other way
        return False
    return moved == [True, False]


def _has_partial_momentum(optimizer: Optimizer) -> bool:
    """Return whether some parameters of a group of SGD have momentum and some have none yet."""
    if not isinstance(optimizer, SGD):
        return False
    for group in optimizer.param_groups:
        if group["momentum"]:
            having = {
                optimizer.state.get(p, {}).get("momentum_buffer") is not None
                for p in group["params"]
                if p.grad is not None
            }
            if len(having) == 2:
                return True
    return False


def _lacks_momentum(optimizer: Optimizer) -> bool:
    """Whether fused SGD would make its momentum buffers in this step.

    It makes them from memory as it finds it and relies on the update to fill them; an update that
    does not happen leaves that noise in place.
    """
    return isinstance(optimizer, SGD) and any(
        parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
        for group in optimizer.param_groups
        if group["momentum"] != 0
        for parameter in group["params"]
    )


def _is_sharded(optimizer: Optimizer) -> bool:
    return any(is_dtensor(p) for p in parameters_of([optimizer]))


def _move_counters(optimizer: Optimizer, group: dict[str, Any], *, to_device: bool) -> None:
    """The fused form counts its steps where the parameters are, the others on the host."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get("step"), torch.Tensor):
            device = local(parameter).device if to_device else torch.device("cpu")
            state["step"] = state["step"].to(device, torch.float32)
