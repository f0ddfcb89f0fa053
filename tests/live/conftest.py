"""What tests of live runs share."""

from collections.abc import Iterator

import pytest
from tests.kit.device_path import taking_device_path


@pytest.fixture
def device_path() -> Iterator[None]:
    """Let guards that start in this test take the path of a device."""
    with taking_device_path():
        yield
