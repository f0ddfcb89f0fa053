"""What tests of live runs share."""

from collections.abc import Iterator

import pytest

from trimtab.live import arithmetic


@pytest.fixture
def device_path() -> Iterator[None]:
    """Let guards that start in this test take the path of a device."""
    with arithmetic.device_path():
        yield
