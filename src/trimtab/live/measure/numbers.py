"""Numbers as people give them, as tensors that can be added up."""

import math
from typing import Any

import torch

from trimtab.state.host_copy import local

Number = float | int | torch.Tensor


class OddNumber(ValueError):
    """A value that cannot be read as one number; the message says what it is."""


def as_scalar(value: Any, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A number as a detached scalar on the device; a host number travels inside a kernel."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise OddNumber(f"a {value.dtype} tensor of shape {tuple(value.shape)}")
        # A replicated DTensor, as clip_grad_norm_ returns it, is whole on every rank.
        scalar = local(value.detach()).reshape(()).to(dtype)
        return scalar.to(device, non_blocking=True)
    return torch.full((), as_float(value), dtype=dtype, device=device)


def as_float(value: Any) -> float:
    """A number that is on the host."""
    if isinstance(value, str | bytes) or value is None:
        raise OddNumber(repr(value)[:40])
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OddNumber(f"{type(value).__name__} ({error})") from error


def root(square: float) -> float:
    """The root of a sum of squares; rounding may leave a tiny negative one."""
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else abs(square)
