"""NormTrend: weight norms that start to grow or shrink faster than before.

It compares the change of a norm over 8 records at a time with what moves the weights: the norm of
the group's updates or, where that is not recorded, the learning rate times the norm. So warm-up and
decay do not change it, and a group that starts to learn fast, such as the attention of a young run,
does not either: its updates grow with it.

One norm that drifts a little is a warning: among a dozen groups of a healthy run one does so now
and then. A second norm soon after it, or one that drifts far, is an alarm.
"""

from collections.abc import Iterator

import numpy as np

from trimtab.core.block import Block, FloatArray, IntArray
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LR, PARAM_NORM, UPDATE_NORM
from trimtab.core.state import Stateful, StatefulDict
from trimtab.detect.tools.range_test import OutOfRange, RangeSpec, RangeTest
from trimtab.detect.tools.series import Point

RECORDS_PER_CHANGE = 8
"""Records over which a change is measured. Source: measured in the lab; 4 and 16 find less."""

GROUP_RANGE = RangeSpec(before=12, newest=3, widths=1.0)
"""Source: 250 healthy runs of the lab stay under 0.95 widths outside, all but one under 0.8;
attention weights that grow by 0.5 % a step are 1.1 to 4 outside, a decay that is 20 times too
strong likewise."""

WHOLE_RANGE = RangeSpec(before=12, newest=3, widths=2.0)
"""For the embedding, and for the whole model, of which it is the largest part: healthy runs reach
2.06."""

FAR_WIDTHS = {GROUP_RANGE: 2.0, WHOLE_RANGE: 4.0}
"""How far outside its range one norm alone is an alarm. Source: in healthy
runs the last of three changes reaches 1.8; weight decay, gains and attention that grow are 2.4 to
390 outside, mostly several norms at once."""

TOGETHER_RECORDS = 64
"""Two norms that drift within this many records drift together."""

LEAST_MOVED = 3e-4
"""Updates count as at least this share of the norm. Where a policy has solved its tasks the
gradients are 0 and the updates are weight decay alone: all of them shrink the norm, by nothing that
matters. Source: the updates of the lab's models are 1 to 5 % of their norms."""

MAX_CHANGE = 1e30
"""A change beyond this is no trend, and the width of its range would overflow."""


class NormTrend(Detector):
    """One finding when the trend of a weight norm changes."""

    name = "norm-trend"
    listens_to = KnownChange.WENT_BACK | KnownChange.CHANGED

    def __init__(self) -> None:
        self._trends = StatefulDict(_new_trend)
        self._drifted: dict[str, int] = {}
        """The tick at which each norm last drifted."""

    def on_event(self, change: KnownChange) -> None:
        """Start again: what comes now does not continue from here."""
        for trend in self._trends.values():
            trend.restart()

    def update_many(self, block: Block) -> list[Finding]:
        names = [name for name in block.columns if name.startswith(PARAM_NORM)]
        drifts = [drift for name in names for drift in self._judge_norm(block, name)]
        drifts.sort(key=lambda drift: drift[1].tick)  # stable: in a record, by the order of names
        return [self._finding(*drift) for drift in drifts]

    def _finding(self, name: str, point: Point, found: OutOfRange) -> Finding:
        """Return the finding, an alarm if the norm is far outside or a second one drifts."""
        others = [tick for other, tick in self._drifted.items() if not _is_same_part(other, name)]
        together = any(point.tick - tick <= TOGETHER_RECORDS for tick in others)
        self._drifted[name] = point.tick
        is_alarm = together or found.widths > FAR_WIDTHS[_range_of(name)]
        return point.finding(
            self.name,
            Symptom.NORM_DRIFT,
            Severity.ALARM if is_alarm else Severity.WARN,
            name,
            facts={"growth": found.value, "least_before": found.low, "most_before": found.high},
        )

    def _judge_norm(self, block: Block, name: str) -> Iterator[tuple[str, Point, OutOfRange]]:
        column, rate = block.columns[name], block.column(LR)
        with np.errstate(invalid="ignore"):
            good = column.finite & (column.values > 0) & rate.finite & (rate.values > 0)
        rows = np.flatnonzero(good)
        if not len(rows):
            return
        values = column.values[rows]
        updates = block.column(_updates_of(name))
        moved = np.where(updates.present, updates.values, 0.0)[rows]
        found = self._trends[name].update(values, block.step[rows], rate.values[rows], moved)
        for at, drift in found:
            yield name, Point.at(block, int(rows[at]), values[at]), drift


class _Trend(Stateful):
    """One norm: where the current change started, its number of records, and the changes before."""

    def __init__(self, spec: RangeSpec) -> None:
        self._range = RangeTest(spec)
        self._by_updates = False
        """Whether the changes before are in units of the updates."""
        self.restart()

    def restart(self) -> None:
        self._start, self._step, self._count = 0.0, 0, -1
        self._range.restart()

    def update(
        self, values: FloatArray, steps: IntArray, rates: FloatArray, moved: FloatArray
    ) -> Iterator[tuple[int, OutOfRange]]:
        """Judge the next records; yield where the trend is out of its range."""
        if self._count < 0:  # the first change starts at the first record
            self._start, self._step = float(values[0]), int(steps[0])
        ends = np.arange(RECORDS_PER_CHANGE - 1 - self._count, len(values), RECORDS_PER_CHANGE)
        self._count += len(values) - RECORDS_PER_CHANGE * len(ends)
        if not len(ends):
            return
        values, steps, rates, moved = values[ends], steps[ends], rates[ends], moved[ends]
        starts = np.concatenate(([self._start], values[:-1]))
        spans = np.diff(np.concatenate(([self._step], steps)))
        self._start, self._step = float(values[-1]), int(steps[-1])
        by_updates = (moved > 0) & (moved < np.inf)
        switches = np.diff(np.concatenate(([self._by_updates], by_updates)))
        self._by_updates = bool(by_updates[-1])
        with np.errstate(all="ignore"):
            moves = np.where(by_updates, np.maximum(moved, LEAST_MOVED * starts), rates * starts)
            changes = (values - starts) / moves
            growth = changes / spans
            bad = (spans <= 0) | ~(np.abs(changes) < MAX_CHANGE)
        first = 0
        for place in np.flatnonzero(bad | switches).tolist():
            for at, found in self._range.update_many(growth[first:place]):
                yield int(ends[first + at]), found
            self._range.restart()
            first = place + int(bad[place])
        for at, found in self._range.update_many(growth[first:]):
            yield int(ends[first + at]), found


def _updates_of(name: str) -> str:
    """Return the signal that moves this norm; none for the whole model and its embedding.

    Few rows of an embedding make up its updates, and others each time: its norm does not follow.
    """
    return "" if _range_of(name) is WHOLE_RANGE else name.replace(PARAM_NORM, UPDATE_NORM, 1)


def _range_of(name: str) -> RangeSpec:
    return WHOLE_RANGE if name in (PARAM_NORM, f"{PARAM_NORM}/embedding") else GROUP_RANGE


def _is_same_part(first: str, second: str) -> bool:
    """Return whether two norms count as one: the embedding is most of the model."""
    return first == second or _range_of(first) is _range_of(second) is WHOLE_RANGE


def _new_trend(name: str) -> _Trend:
    return _Trend(_range_of(name))
