"""The numbers of a step, where they are: tensors on a device, floats where the device is the host.

What is measured and decided in every step is written once, for a `Scalar`. On a device a scalar is
a tensor of one number, and nothing waits for it. Where parameters are in host memory it is a float:
an operation on a tensor of one number costs fifty times as much, and there is nothing to wait for.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from trimtab.state.host_copy import local

Scalar: TypeAlias = Any
"""A float, or a tensor of one number; conditions are a bool, or a tensor of one."""

Vector: TypeAlias = Any
"""A list of floats, or a tensor with one dimension."""


class OddNumber(ValueError):
    """A value that cannot be read as one number; the message says what it is."""


def as_float(value: Any) -> float:
    """A number that is on the host."""
    if isinstance(value, str | bytes) or value is None:
        raise OddNumber(repr(value)[:40])
    try:
        # NumPy makes no float of an array of one number.
        return float(value.item() if isinstance(value, np.ndarray) and value.ndim else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OddNumber(f"{type(value).__name__} ({error})") from error


def as_scalar(value: Any, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A number as a detached scalar on the device; a host number travels inside a kernel."""
    if isinstance(value, torch.Tensor):
        return _whole(value).reshape(()).to(dtype).to(device, non_blocking=True)
    return torch.full((), as_float(value), dtype=dtype, device=device)


def _whole(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of one number without its graph, as every rank has it."""
    if value.numel() != 1 or value.is_complex():
        raise OddNumber(f"a {value.dtype} tensor of shape {tuple(value.shape)}")
    part = value.detach()
    # A DTensor is replicated, as clip_grad_norm_ returns it: it is whole.
    return local(part)


def is_finite(value: Scalar) -> Scalar:
    """Whether a number is neither NaN nor infinite; on a device two operations, and not four."""
    return abs(value) < math.inf


class HostMath:
    """Arithmetic of floats, with infinities and NaN where torch has them and Python raises."""

    is_host: Literal[True] = True
    zero: Scalar = 0.0
    one: Scalar = 1.0
    nan: Scalar = math.nan

    def number(self, value: Any) -> Scalar:
        """Return one number that somebody gave; raises OddNumber."""
        if type(value) is torch.Tensor and value.ndim == 0 and not value.is_complex():
            return value.item()
        return as_float(_whole(value) if isinstance(value, torch.Tensor) else value)

    def kept(self, value: Scalar) -> Scalar:
        """Return a number that stays as it is whatever happens to what it was read from."""
        return value

    def vector(self, values: Sequence[Scalar]) -> Vector:
        """Return a vector of numbers, conditions (as 0 and 1) and small whole numbers."""
        return list(values)

    def parts(self, vector: Vector) -> Vector:
        """Return the numbers of a vector."""
        return vector

    def where(self, condition: Scalar, value: Scalar, other: Scalar) -> Scalar:
        return value if condition else other

    def negated(self, condition: Scalar) -> Scalar:
        return not condition

    def ratio(self, value: Scalar, by: Scalar) -> Scalar:
        if by:
            return value / by
        return math.nan if value == 0 or value != value else math.copysign(math.inf, value)

    def root(self, value: Scalar) -> Scalar:
        return math.sqrt(value) if value >= 0 else math.nan

    def log(self, value: Scalar) -> Scalar:
        if value > 0:
            return math.log(value)
        return -math.inf if value == 0 else math.nan

    def exp(self, value: Scalar) -> Scalar:
        return math.exp(value) if not value > 709 else math.inf

    def maximum(self, value: Scalar, other: Scalar) -> Scalar:
        return value if value != value or value > other else other


class DeviceMath:
    """Arithmetic of tensors of one number, on a device; the host waits for none of them."""

    is_host: Literal[False] = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        numbers = torch.tensor([0.0, 1.0, math.nan], dtype=torch.float32, device=device)
        self.zero: Scalar
        self.one: Scalar
        self.nan: Scalar
        self.zero, self.one, self.nan = numbers.unbind()
        self._constants: dict[int, torch.Tensor] = {}

    def number(self, value: Any) -> Scalar:
        return as_scalar(value, self.device)

    def kept(self, value: Scalar) -> Scalar:
        return value.clone()

    def vector(self, values: Sequence[Scalar]) -> Vector:
        return torch.stack([v if isinstance(v, torch.Tensor) else self._whole(v) for v in values])

    def _whole(self, value: int) -> torch.Tensor:
        """Return a small whole number, which is on the device already after its first use."""
        known = self._constants.get(value)
        if known is None:
            known = torch.full((), value, dtype=torch.float32, device=self.device)
            self._constants[value] = known
        return known

    def parts(self, vector: Vector) -> Vector:
        return vector.unbind()

    def where(self, condition: Scalar, value: Scalar, other: Scalar) -> Scalar:
        return torch.where(condition, value, other)

    def negated(self, condition: Scalar) -> Scalar:
        return ~condition

    def ratio(self, value: Scalar, by: Scalar) -> Scalar:
        return value / by

    def root(self, value: Scalar) -> Scalar:
        return value.sqrt()

    def log(self, value: Scalar) -> Scalar:
        return value.log()

    def exp(self, value: Scalar) -> Scalar:
        return value.exp()

    def maximum(self, value: Scalar, other: Scalar) -> Scalar:
        return value.clamp(min=other)


Math: TypeAlias = HostMath | DeviceMath


_switch = SimpleNamespace(is_on=False)


@contextmanager
def device_path() -> Iterator[None]:
    """Let guards that start in here take the path of a device on a processor too, to test it."""
    _switch.is_on = True
    try:
        yield
    finally:
        _switch.is_on = False


def math_of(parameters: Sequence[torch.Tensor]) -> Math:
    """Return the arithmetic for these parameters: floats only if all of them are in host memory."""
    devices = [local(parameter).device for parameter in parameters]
    is_host = all(device.type == "cpu" for device in devices)
    return HostMath() if is_host and not _switch.is_on else DeviceMath(devices[0])
