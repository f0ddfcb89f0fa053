"""What tests of several trainers need."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_accelerator() -> Iterator[None]:
    """Accelerators of one process share their state; leave none behind."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
