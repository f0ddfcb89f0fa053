"""LastingRise: waits until a rise of the level has lasted, and raises the alarm.

The order of the data makes bumps of dozens of records that look like a level that rose, and so does
the tail of a recovery. They pass; a model that got worse stays worse.
"""

from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.core.state import Stateful
from trimtab.detect.tools.cell_means import Cell

NUM_CELLS, MAX_CELLS = 12, 36
"""Cells of 8 records after which a rise has lasted. One that falls is looked at again after as
many, and given up after the second. Source: without the wait, this rule raised most of the false
alarms on unseen LLM runs, where runs over the same data show the same bump."""

LASTING_SHARE, FALLING_SHARE = 0.5, 0.4
"""This share of the rise must still be there. A level that falls by the second share of its height,
from the first half of these cells to the second half, is coming back. Chosen."""


class LastingRise(Stateful):
    """At most one rise that waits."""

    def __init__(self) -> None:
        self._level: float | None = None
        """The level before the rise; None if nothing waits."""
        self._onset_tick: int | None = None
        self._facts: dict[str, float] = {}
        """Of the warning."""
        self._means: list[float] = []
        """The cells since then."""

    @property
    def is_waiting(self) -> bool:
        """Whether a rise waits."""
        return self._level is not None

    def wait_for(self, warning: Finding) -> None:
        """Wait for the rise of a warning, unless an earlier one waits already."""
        if self._level is None:
            self._level, self._onset_tick = warning.expected, warning.onset_tick
            self._facts, self._means = dict(warning.facts), []

    def stop(self) -> None:
        """Stop waiting."""
        self._level, self._onset_tick, self._facts, self._means = None, None, {}, []

    def update(self, cell: Cell) -> Finding | None:
        """Add the next cell; return the alarm if the rise has lasted."""
        level, rise = self._level, self._facts.get("rise", 0.0)
        if level is None:
            return None
        self._means.append(cell.mean)
        if len(self._means) % NUM_CELLS:
            return None
        half = NUM_CELLS // 2
        first, second = sum(self._means[-NUM_CELLS:-half]), sum(self._means[-half:])
        height = (first + second) / NUM_CELLS - level
        is_high = height > LASTING_SHARE * rise
        if is_high and first - second > half * FALLING_SHARE * height:
            if len(self._means) >= MAX_CELLS:
                self.stop()
            return None
        finding = self._alarm(cell, level, height) if is_high else None
        self.stop()
        return finding

    def _alarm(self, cell: Cell, level: float, height: float) -> Finding:
        return Finding(
            detector="level-shift",
            symptom=Symptom.LEVEL_SHIFT,
            severity=Severity.ALARM,
            signal=LOSS,
            step=cell.step,
            tick=cell.tick,
            value=cell.loss,
            expected=level,
            onset_tick=self._onset_tick,
            facts={**self._facts, "rise": height},
        )
