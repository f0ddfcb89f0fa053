"""RunClock: what an intervention counts, so that skipped batches have a defined effect on it.

A fault of the data comes with its batches, and not if they are skipped; one of code, settings or
schedule comes at its step, whatever is served. In a run that skips nothing both are equal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RunClock:
    """The time of a run, in steps or by its batches, as its intervention needs it."""

    def __init__(self, accumulate: int = 1) -> None:
        self.by_data = False
        self.num_skipped = 0
        """Batches that the loader skips at its start: the loop counts only those it is served."""
        self._accumulate = accumulate
        self._offset = 0
        self._probed: int | None = None
        """The time of a batch that is run again."""
        self._before_step: list[Callable[[int], None]] = []

    def on_step(self, act: Callable[[int], None]) -> None:
        self._before_step.append(act)

    def begin(self, step: int, position: int) -> None:
        now = self.time_of_batch(position + self.num_skipped) if self.by_data else step
        self._offset = now - step
        for act in self._before_step:
            act(now)

    def time_of_batch(self, position: int) -> int:
        """Return the step of a batch in a run that skips none."""
        return position // self._accumulate

    def time(self, step: int) -> int:
        return step + self._offset if self._probed is None else self._probed

    @contextmanager
    def at_batch(self, position: int) -> Iterator[None]:
        """Set the clock to the batch of another step during a forward pass."""
        if self.by_data:
            self._probed = self.time_of_batch(position)
        try:
            yield
        finally:
            self._probed = None
