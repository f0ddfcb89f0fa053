"""Throughput: single steps that stall, and a pace that falls for good.

It uses the seconds per step where they are recorded, else the inverse of tokens per second. A
machine that is busy with other work stalls and slows down in any healthy run, and unannounced
evaluations, checkpoints and compilation look the same: all of that is a warning. Three stalls close
together that wait for data are an alarm. So is a lower pace that is steady, as that of a slow rank
or device, or that has lasted for so long that it will not come back by itself (LastingPace).
"""

from typing import NamedTuple

import numpy as np

from trimtab.core.block import Block, FloatArray, IntArray
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import medians
from trimtab.core.signals import DATA_SECONDS, STEP_SECONDS, TOKENS_PER_SECOND
from trimtab.core.state import Stateful
from trimtab.detect.tools.range_test import OutOfRange, RangeSpec, RangeTest
from trimtab.detect.tools.series import Point, windows_over

# LastingPace: waits whether a pace that fell comes back.
#
# A machine that is busy with other work slows a run down for a while. A slow rank, a throttled
# device or a smaller share of the machine does so for good.

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
        self._high = None

    def update(self, cells: FloatArray) -> tuple[int, OutOfRange] | None:
        """Add the next medians; return the index at which the lower pace has lasted, and it."""
        high = self._high
        if high is None:
            return None
        for place, seconds in enumerate(cells.tolist()):
            self._count += 1
            if seconds <= high:
                self.stop()
                return None
            if self._count == NUM_CELLS:
                self.stop()
                return place, OutOfRange(seconds, self._low, high)
        return None


RECORDS_PER_MEDIAN = 4
"""Records that are reduced to their median."""

SLOW_RANGE = RangeSpec(before=32, newest=10, times=1.3, downwards=False)
"""Even the fastest of 10 medians is this much slower than the slowest of 32 before. Source: on two
busy cores shared with other work, healthy runs of the lab reach 1.18; published alerts use 1.25 on
dedicated machines."""

FAR_TIMES, STEADY = 1.5, 2.0
"""A pace that is this many times slower than the slowest median before is an alarm at once if it is
steady: the slowest of the 10 newest medians at most twice the fastest. Source: a slow rank of the
lab is 2.2 times slower and scatters by 1.3; a machine that is busy with other work is up to 49
times slower and scatters by 3.7 to 8.8 (4 of 109 runs)."""

STALL_TIMES = 10.0
"""A step that takes this many times the usual time is a stall. Source: on such a shared machine
healthy steps reach 7."""

STALL_WINDOW, STALLS_FOR_ALARM = 32, 3
"""This many stalls within 32 steps are an alarm if they wait for data. Three for other reasons came
in 14 of 91 runs of the lab on a busy machine. In a thinned log a record is many steps long, and
never this close to the one before."""

DATA_SHARE = 0.5
"""A stall waits for data if this share of the step did. Source: as in the observation of it."""

LARGER_TIMES, RECORDS_REMEMBERED = 2.0, 1024
"""A stall is reported again only if it is twice as long as all stalls of the last 1,024 records."""

MIN_VALUE, MAX_VALUE = 1e-12, 1e15
"""The range of plausible step seconds and tokens per second."""


class _Pace(NamedTuple):
    """A pace that fell, or stayed low."""

    found: OutOfRange
    severity: Severity


class Throughput(Detector):
    """Warnings for stalls and a lower pace; alarms if the data is late or the pace stays low."""

    name = "throughput"
    listens_to = (
        KnownChange.RESUMED | KnownChange.PAUSED | KnownChange.CHANGED | KnownChange.WENT_BACK
    )

    def __init__(self) -> None:
        self._signal: str | None = None
        self._cell: list[float] = []
        self._medians: list[float] = []
        """Of the last 4 cells."""
        self._pace = RangeTest(SLOW_RANGE)
        self._lasting = LastingPace()
        self._is_excused = False
        self._count = 0
        self._largest = 0.0
        self._stalled, self._alarmed = -RECORDS_REMEMBERED, -RECORDS_REMEMBERED
        """Records of the last stall and of the last alarm for stalls."""
        self._stalled_steps: list[int] = []
        """Of the latest stalls that waited for data."""

    def on_event(self, change: KnownChange) -> None:
        """Excuse the next record; after a change, measure the pace from scratch."""
        self._is_excused = True
        if change & KnownChange.CHANGED:
            self._cell, self._medians = [], []
            self._pace.restart()
            self._lasting.stop()

    def update_many(self, block: Block) -> list[Finding]:
        if self._signal is None:
            self._signal = _first_named(block)
        column = block.columns.get(self._signal or "")
        if column is None:
            return []
        with np.errstate(invalid="ignore"):
            good = column.present & (column.values > MIN_VALUE) & (column.values < MAX_VALUE)
        rows = np.flatnonzero(good)
        values = column.values[rows]
        seconds = values if self._signal == STEP_SECONDS else 1.0 / values
        waited = block.column(DATA_SECONDS).values[rows]
        if self._is_excused and len(rows):
            self._is_excused = False
            self._count += 1
            rows, values, seconds, waited = rows[1:], values[1:], seconds[1:], waited[1:]
        findings = []
        for at, pace in self._stalls_and_slowdowns(seconds):
            row = int(rows[at])
            point = Point.at(block, row, values[at])
            finding = (
                self._stall(point, float(seconds[at]), float(waited[at]), self._count + at + 1)
                if pace is None
                else self._slow(point, *pace)
            )
            if finding is not None:
                findings.append(finding)
        self._count += len(rows)
        return findings

    def _paces(self, of_cells: FloatArray) -> list[tuple[int, _Pace]]:
        """Return the cells where the pace has fallen, or has stayed low."""
        paces = []
        begin = 0
        for cell, found in [*self._pace.update_many(of_cells), (len(of_cells) - 1, None)]:
            lasting = self._lasting.update(of_cells[begin : cell + 1])
            if lasting is not None:
                place, stayed = lasting
                paces.append((begin + place, _Pace(stayed, Severity.ALARM)))
            begin = cell + 1
            if found is not None:
                paces.append((cell, self._fallen(found)))
        return paces

    def _fallen(self, found: OutOfRange) -> _Pace:
        """Grade a pace that has left its range: an alarm if far off and steady, else wait."""
        if found.value >= FAR_TIMES * found.high and found.scatter <= STEADY:
            self._lasting.stop()
            return _Pace(found, Severity.ALARM)
        self._lasting.wait_for(found)
        return _Pace(found, Severity.WARN)

    def _stalls_and_slowdowns(self, seconds: FloatArray) -> list[tuple[int, _Pace | None]]:
        """Return where steps stall (None), and where the pace fell or stayed low, in order."""
        known = np.concatenate((self._cell, seconds))
        begin = len(self._cell)
        cells = len(known) // RECORDS_PER_MEDIAN
        whole = known[: cells * RECORDS_PER_MEDIAN]
        of_cells = medians(whole.reshape(cells, RECORDS_PER_MEDIAN))
        places: list[tuple[int, _Pace | None]] = [
            (at, None) for at in self._stalls(known, begin, of_cells).tolist()
        ]
        for cell, pace in self._paces(of_cells):
            places.append(((cell + 1) * RECORDS_PER_MEDIAN - 1 - begin, pace))
        self._medians = [*self._medians, *of_cells[-4:].tolist()][-4:]
        self._cell = known[cells * RECORDS_PER_MEDIAN :].tolist()
        return sorted(places, key=lambda place: (place[0], place[1] is not None))

    def _stalls(self, known: FloatArray, begin: int, of_cells: FloatArray) -> IntArray:
        """Return where a step is far slower than the cells before its own."""
        all_medians = np.concatenate((self._medians, of_cells))
        usual = np.full(len(known) // RECORDS_PER_MEDIAN + 1, np.inf)
        lead = 4 - len(self._medians)
        if len(all_medians) >= 4:
            of_four = medians(windows_over(all_medians, 4))
            usual[lead : lead + len(of_four)] = of_four
        limits = np.repeat(STALL_TIMES * usual, RECORDS_PER_MEDIAN)[: len(known)]
        places: IntArray = np.flatnonzero(known[begin:] > limits[begin:])
        return places

    def _stall(self, point: Point, seconds: float, waited: float, count: int) -> Finding | None:
        """Return the finding for a stall in record number `count`; None if it is nothing new."""
        since, self._stalled = count - self._stalled, count
        close = [step for step in self._stalled_steps if 0 < point.step - step <= STALL_WINDOW]
        if self._signal == STEP_SECONDS and waited > DATA_SHARE * seconds:
            close.append(point.step)
        self._stalled_steps = close
        if since > RECORDS_REMEMBERED:
            self._largest = 0.0
        is_alarm = len(close) >= STALLS_FOR_ALARM and count - self._alarmed > RECORDS_REMEMBERED
        is_news = seconds > LARGER_TIMES * self._largest
        self._largest = max(self._largest, seconds)
        if is_alarm:
            self._alarmed = count
        if not is_alarm and not is_news:
            return None
        severity = Severity.ALARM if is_alarm else Severity.WARN
        return point.finding(self.name, Symptom.STALL, severity, self._signal or "")

    def _slow(self, point: Point, found: OutOfRange, severity: Severity) -> Finding:
        facts = {"seconds": found.value, "slowest_before": found.high}
        return point.finding(self.name, Symptom.SLOW, severity, self._signal or "", facts=facts)


def _first_named(block: Block) -> str | None:
    """Return the signal that is recorded first; of two in one record, the seconds."""
    rows = [
        (int(np.argmax(block.columns[name].present)), at, name)
        for at, name in enumerate((STEP_SECONDS, TOKENS_PER_SECOND))
        if name in block.columns and block.columns[name].recorded
    ]
    return min(rows)[2] if rows else None
