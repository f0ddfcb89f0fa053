"""The path of a device, on a processor: numbers of a step are tensors that nothing may wait for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch

from trimtab.live.arithmetic import DeviceMath


def _device_math(parameters: Sequence[torch.Tensor]) -> DeviceMath:
    return DeviceMath(parameters[0].device)


@contextmanager
def taking_device_path() -> Iterator[None]:
    """Let guards that start in here take the path of a device."""
    with mock.patch("trimtab.live.watch.math_of", _device_math):
        yield
