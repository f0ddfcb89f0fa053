"""RunClock: what an intervention counts, so that a rollback has a defined effect on it.

After a rollback a step is done again. Whether a fault comes again depends on what it goes by:

    data   its batches: it comes again with them, unless they are skipped
    tick   time: what has happened once does not happen again
    step   code, settings, schedule: it comes again whenever the step does

In a run that never goes back, the three are equal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Clock(StrEnum):
    """What an intervention goes by."""

    DATA = "data"
    TICK = "tick"
    STEP = "step"


class RunClock:
    """The time of a run on the clock that its intervention goes by."""

    def __init__(self, accumulate: int = 1) -> None:
        self.by = Clock.STEP
        self._accumulate = accumulate
        self._tick: int | None = None
        self._offset = 0
        self._probed: int | None = None
        """The time of a batch that is run again."""
        self._before_step: list[Callable[[int], None]] = []

    def on_step(self, act: Callable[[int], None]) -> None:
        """Call `act` with the time before every step."""
        self._before_step.append(act)

    def begin(self, step: int, position: int) -> None:
        """Begin a step with the batch at this data position."""
        self._tick = step if self._tick is None else self._tick + 1
        times = {Clock.STEP: step, Clock.TICK: self._tick, Clock.DATA: self.time_of_batch(position)}
        self._offset = times[self.by] - step
        for act in self._before_step:
            act(times[self.by])

    def time_of_batch(self, position: int) -> int:
        """Return the step of a batch in a run that never goes back."""
        return position // self._accumulate

    def time(self, step: int) -> int:
        """Return the time of the step that is computed now."""
        return step + self._offset if self._probed is None else self._probed

    @contextmanager
    def at_batch(self, position: int) -> Iterator[None]:
        """Set the clock to the batch of another step during a forward pass."""
        if self.by is Clock.DATA:
            self._probed = self.time_of_batch(position)
        try:
            yield
        finally:
            self._probed = None
