"""The path of a device, on a processor: numbers of a step are tensors that nothing may wait for."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from trimtab.live.measure.arithmetic import DeviceMath


@contextmanager
def taking_device_path() -> Iterator[None]:
    """Let guards that start in here take the path of a device."""
    with mock.patch("trimtab.live.watch.math_of", DeviceMath):
        yield
