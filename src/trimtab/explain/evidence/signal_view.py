"""SignalView: one signal around the onset of an incident."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.robust import median, sigma_around

RECORDS = 64
"""How many records before and after the onset are looked at. Source: faults of small models move
their first signal within 8 steps of each other and show their outcome within 64."""

MIN_BEFORE = 8
"""With fewer records before the onset, nothing is known about what is usual."""

MIN_MOVING = 3
"""Records after the onset that can show a growth: two changes in a row are the two largest of 34 by
chance once in 561 times."""


@dataclass(frozen=True, slots=True)
class SignalView:
    """One signal around the onset; only made where there are finite values on both sides."""

    name: str
    before: FloatArray
    """The last finite values before the onset."""
    after: FloatArray
    """The values from the onset on, up to the first that is not finite."""

    @property
    def usual(self) -> float:
        """The median before the onset."""
        return float(np.median(self.before))

    @property
    def noise(self) -> float:
        """The robust standard deviation before the onset; never 0."""
        return deviation(self.before)

    def median(self, start: int, stop: int) -> float | None:
        """The median of these records after the onset; None if half of them are not there yet."""
        values = self.after[start:stop]
        return float(np.median(values)) if len(values) >= (stop - start + 1) // 2 else None

    def peak(self, records: int) -> float:
        """The largest of the first records, in multiples of the usual value."""
        return self.ratio(float(self.after[:records].max()))

    def ratio(self, value: float) -> float:
        """A value in multiples of the usual one."""
        return value / self.usual if self.usual else (1.0 if value == 0 else np.inf)

    def sigmas(self, value: float) -> float:
        """How far a value is from the usual one, in standard deviations."""
        return (value - self.usual) / self.noise

    def jump(self) -> float:
        """The value at the onset in multiples of the last one before it."""
        last = float(self.before[-1])
        return float(self.after[0]) / last if last else np.inf

    def jump_sigmas(self) -> float:
        """The change at the onset against the changes from record to record before it."""
        changes = np.diff(self.before)
        usual = float(np.median(changes))
        return (float(self.after[0] - self.before[-1]) - usual) / deviation(changes)

    def growth(self, records: int) -> tuple[float, float] | None:
        """The growth per record before and after the onset, as fractions.

        Fewer records after the onset count only if they move faster than any before it.
        """
        after = self.after[:records]
        if len(after) < MIN_MOVING or min(self.before.min(), after.min()) <= 0:
            return None
        if len(after) < records and not self._moves_faster(after):
            return None
        # From the older half: a slow change is found late. A jump at the onset is not growth.
        half = len(self.before) // 2
        earlier = float(np.log(self.before[half] / self.before[0])) / half
        return earlier, float(np.log(after[-1] / after[0])) / (len(after) - 1)

    def _moves_faster(self, after: FloatArray) -> bool:
        """Whether every change after the onset is in one direction, and larger than any before."""
        changes = np.diff(np.log(after))
        largest = float(np.abs(np.diff(np.log(self.before))).max())
        return bool((changes > largest).all() or (changes < -largest).all())


def deviation(values: FloatArray) -> float:
    """Return the robust standard deviation of values; never 0."""
    middle = median(values.tolist())
    # A floor for signals that never moved, so that any change of them is many deviations.
    floor = 1e-9 * max(abs(middle), 1e-9)
    return max(sigma_around(middle, values.tolist()), floor)
