"""Turn: a smooth curve that turns upwards.

    9.2 \\
          \\ _                          three rises in a row, each larger than
              - _        /   / /       any change of the 24 records before
                  - _ _ /

A loss that falls steadily and then rises is still under its level of dozens of records ago, so
neither its baseline nor its level shows that it has turned. Its changes do. The test uses only
their order, so it holds in noise of any size: the changes of noise alternate, and three in a row
beyond the range of 24 are rare. It is for curves with little noise: thinned, averaged, read off a
plot.
"""

from itertools import pairwise

import numpy as np

from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS
from trimtab.core.state import Stateful
from trimtab.detect.loss.domain import Domain
from trimtab.detect.tools.range_test import RangeSpec, RangeTest
from trimtab.detect.tools.series import Point, Series

RANGE = RangeSpec(before=24, newest=3, downwards=False)
"""Chosen on the tuning halves of `scripts/bench judge` and of the public runs."""

MIN_STRIDE = 2
"""Steps from record to record: where every step is logged the order of the data makes such turns,
and the sums of `loss-spike` find those that last."""

MIN_RISE = 0.02
"""The rise over the three records, as a share of the loss. Chosen."""


class Turn(Stateful):
    """Alarms where the changes of a loss leave their range upwards."""

    name = "turn"
    not_saved = ("_domain",)

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._range = RangeTest(RANGE)
        self._latest: list[float] = []
        self._steps: list[int] = []
        """The values that the newest changes are between, and their steps."""

    def restart(self) -> None:
        self._range.restart()
        self._latest, self._steps = [], []

    def update(self, point: Point) -> Finding | None:
        """Judge a finite loss on the scale of its domain."""
        self._latest = [*self._latest[-RANGE.newest :], point.value]
        self._steps = [*self._steps[-RANGE.newest :], point.step]
        if len(self._latest) < 2:
            return None
        found = self._range.update(self._latest[-1] - self._latest[-2])
        if found is None:
            return None
        return self._finding(point, self._latest, point.step - self._steps[0])

    def update_many(self, series: Series) -> list[Finding]:
        """Judge many finite losses, as `update` would one by one."""
        if not len(series):
            return []
        known = np.concatenate((self._latest, series.value))
        steps = [*self._steps, *series.step.tolist()]
        before = len(self._latest)
        changes = np.diff(known[max(before - 1, 0) :])
        findings = []
        for at, _ in self._range.update_many(changes):
            place = at + (1 if before == 0 else 0)
            last = before + place
            latest = known[last - RANGE.newest : last + 1].tolist()
            took = steps[last] - steps[last - RANGE.newest]
            finding = self._finding(series.one(place), latest, took)
            if finding is not None:
                findings.append(finding)
        self._latest = known[-RANGE.newest - 1 :].tolist()
        self._steps = steps[-RANGE.newest - 1 :]
        return findings

    def _finding(self, point: Point, latest: list[float], steps: int) -> Finding | None:
        """Return the alarm if the loss rose at each of the newest records, and by enough.

        Args:
            point: The newest record.
            latest: The values that the newest changes are between.
            steps: From the first of these to the last.
        """
        if steps < MIN_STRIDE * RANGE.newest:
            return None
        first = latest[0]
        is_rising = all(after > before for before, after in pairwise(latest))
        rise = self._domain.share(point.value - first, first)
        if not is_rising or rise <= MIN_RISE:
            return None
        return Finding(
            detector=self.name,
            symptom=Symptom.LOSS_SPIKE,
            severity=Severity.ALARM,
            signal=LOSS,
            step=point.step,
            tick=point.tick,
            value=self._domain.back(point.value),
            expected=self._domain.back(first),
            facts={"records": float(RANGE.newest), "rise": rise},
        )
