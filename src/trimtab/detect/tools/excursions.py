"""Excursions: high values that keep coming back belong to the run.

A loss may have two levels: mixed and plain images, alternating tasks, two sources of data. The
window of a baseline then shows the noise of the lower level alone, and every value of the upper one
looks like a spike. What recurs is a mode of the data: when separate excursions have come often
enough, their height is the scale.
"""

from collections.abc import Sequence

from trimtab.core.robust import median
from trimtab.core.state import Stateful
from trimtab.detect.tools.expectation import Expectation

MEMORY, MIN_COUNT = 256, 5
"""Records in which this many separate excursions make a mode. Source: planted second levels with
shares of 5 to 45 % raise 4 alarms a run instead of up to 80; with 4 one labelled spike of the
public tuning runs is lost, 6 finds no more."""

SCALES_HIGH = 1.5
"""A usual excursion counts as this many scales. Chosen: sixteen of them in a row stay under the
threshold of a sum, which is 6."""


class Excursions(Stateful):
    """The separate excursions of the latest records, and their heights."""

    def __init__(self) -> None:
        self._known: list[tuple[int, float]] = []
        """For how many records each is over, and its highest value above what was expected."""
        self._is_out = False

    def __bool__(self) -> bool:
        return bool(self._known)

    def clear(self) -> None:
        """Forget everything."""
        self._known, self._is_out = [], False

    def learn(self, window: Sequence[float], known: Expectation, far_off: float) -> None:
        """Add the first window, which was not scored."""
        for age, value in zip(range(-len(window), 0), window, strict=True):
            height = value - known.start - known.slope * age
            self.widen(height, known.scale, is_far=height > far_off * known.scale)

    def widen(self, height: float, scale: float, *, is_far: bool) -> float:
        """Add a value, by its height above what was expected; return the scale to judge it by."""
        if self._known:
            self._known = [(age + 1, high) for age, high in self._known if age < MEMORY]
        usual = scale
        if len(self._known) >= MIN_COUNT:
            usual = max(scale, median(high for _, high in self._known) / SCALES_HIGH)
        if is_far and self._is_out and self._known:
            age, high = self._known[-1]
            self._known[-1] = age, max(high, height)
        elif is_far:
            self._known.append((0, height))
        self._is_out = is_far
        return usual
