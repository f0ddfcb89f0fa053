"""LastingPace: waits whether a pace that fell comes back.

A machine that is busy with other work slows a run down for a while. A slow rank, a throttled device
or a smaller share of the machine does so for good.
"""

from trimtab.core.block import FloatArray
from trimtab.core.state import Stateful
from trimtab.detect.tools.range_test import OutOfRange

NUM_CELLS = 32
"""Medians of 4 records that must all stay slower than the slowest before the fall: as many as the
range that the pace left. Chosen."""


class LastingPace(Stateful):
    """At most one lower pace that waits."""

    def __init__(self) -> None:
        self._low = 0.0
        self._high: float | None = None
        """The slowest median before the pace fell; None if nothing waits."""
        self._count = 0

    def wait_for(self, found: OutOfRange) -> None:
        """Wait for a pace that fell, unless an earlier one waits already."""
        if self._high is None:
            self._low, self._high, self._count = found.low, found.high, 0

    def stop(self) -> None:
        """Stop waiting."""
        self._high = None

    def update(self, seconds: float) -> OutOfRange | None:
        """Add the next median; return the lower pace if it has lasted."""
        high = self._high
        if high is None:
            return None
        self._count += 1
        is_over = seconds <= high
        if not is_over and self._count < NUM_CELLS:
            return None
        self.stop()
        return None if is_over else OutOfRange(seconds, self._low, high)

    def update_many(self, cells: FloatArray) -> tuple[int, OutOfRange] | None:
        """Add the next medians; return the place where the lower pace has lasted, and that pace."""
        for place, seconds in enumerate(cells.tolist() if self._high is not None else ()):
            found = self.update(seconds)
            if found is not None:
                return place, found
            if self._high is None:
                break
        return None
