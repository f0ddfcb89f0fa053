"""Throughput: single steps that stall, and a pace that falls for good.

Seconds per step are taken where they are recorded, else tokens per second turned over. One stall is
a warning: evaluations and checkpoints that nobody announced look the same, and so does a compiler
at work. Three that follow each other closely are a loader that starves, or a machine in trouble.
"""

from typing import Any

import numpy as np

from trimtab.core.block import Block, FloatArray, IntArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import STEP_SECONDS, TOKENS_PER_SECOND
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.range_test import Outside, Span, Stray
from trimtab.detect.tools.rows import Row, Seen

CELL = 4
"""Records of which the median is taken."""

SLOWER = Span(before=32, newest=10, times=1.3, downwards=False)
"""Even the fastest of 10 medians is that much slower than the slowest of 32 before. Source: on two
busy cores that other work shares, healthy runs of the lab reach 1.18; published alerts take 1.25 on
machines of their own."""

STALL_TIMES = 10.0
"""Times the usual that one step must take. Source: on such a machine healthy steps reach 7."""

CLOSE, SEVERAL = 32, 3
"""Steps within which so many stalls are an alarm: evaluations that nobody announced are rarer. In a
thinned log a record is many steps long, and never this close to the one before."""

LARGER, FORGOTTEN = 2.0, 1024
"""A stall is told again only if it is so many times larger than those of so many records before."""

LEAST, MOST = 1e-12, 1e15
"""What can be seconds of a step or tokens per second at all."""


class Throughput:
    """Warnings for single stalls, alarms for several and for a lower pace."""

    name = "throughput"
    hears = Known.RESUMED | Known.PAUSED | Known.CHANGED | Known.WENT_BACK

    def __init__(self) -> None:
        self._signal: str | None = None
        self._cell: list[float] = []
        self._medians: list[float] = []
        """Of the last 4 cells."""
        self._pace = Outside(SLOWER)
        self._is_excused = False
        self._count = 0
        self._largest = 0.0
        self._stalled, self._alarmed = -FORGOTTEN, -FORGOTTEN
        """Records at which a step last stalled, and was last alarmed for."""
        self._stalled_steps: list[int] = []

    def hear(self, known: Known) -> None:
        """The next record may take its time; after a change, so may all that follow."""
        self._is_excused = True
        if known & Known.CHANGED:
            self._cell, self._medians = [], []
            self._pace.restart()

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        signals = row.signals
        if self._signal is None:
            names = [name for name in (STEP_SECONDS, TOKENS_PER_SECOND) if name in signals]
            if not names:
                return []
            self._signal = names[0]
        value = signals.get(self._signal, 0.0)
        if not LEAST < value < MOST:
            return []
        seen = Seen(row.tick, row.step, value)
        seconds = value if self._signal == STEP_SECONDS else 1.0 / value
        self._count += 1
        if self._is_excused:
            self._is_excused = False
            return []
        stall = self._stall(seen, seconds, self._count) if self._is_stall(seconds) else None
        slow = None
        self._cell.append(seconds)
        if len(self._cell) == CELL:
            ordered = sorted(self._cell)
            self._cell = []
            slow = self._end_cell(0.5 * (ordered[CELL // 2 - 1] + ordered[CELL // 2]))
        findings = [stall, None if slow is None else self._slow(seen, slow)]
        return [finding for finding in findings if finding is not None]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        if self._signal is None:
            self._signal = _first_named(block)
        column = block.columns.get(self._signal or "")
        if column is None:
            return []
        with np.errstate(invalid="ignore"):
            good = column.present & (column.values > LEAST) & (column.values < MOST)
        rows = np.flatnonzero(good)
        values = column.values[rows]
        seconds = values if self._signal == STEP_SECONDS else 1.0 / values
        if self._is_excused and len(rows):
            self._is_excused = False
            self._count += 1
            rows, values, seconds = rows[1:], values[1:], seconds[1:]
        findings = []
        for at, stray in self._events(seconds):
            row = int(rows[at])
            seen = Seen.at(block, row, values[at])
            found = (
                self._stall(seen, float(seconds[at]), self._count + at + 1)
                if stray is None
                else self._slow(seen, stray)
            )
            if found is not None:
                findings.append(found)
        self._count += len(rows)
        return findings

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "signal": self._signal,
            "cell": list(self._cell),
            "medians": list(self._medians),
            "pace": self._pace.state_dict(),
            "is_excused": self._is_excused,
            "count": self._count,
            "stalls": [self._largest, self._stalled, self._alarmed],
            "stalled_steps": list(self._stalled_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._signal, self._cell = state["signal"], list(state["cell"])
        self._medians = list(state["medians"])
        self._pace.load_state_dict(state["pace"])
        self._is_excused, self._count = bool(state["is_excused"]), int(state["count"])
        self._largest, self._stalled, self._alarmed = state["stalls"]
        self._stalled_steps = list(state["stalled_steps"])

    def _is_stall(self, seconds: float) -> bool:
        return len(self._medians) == 4 and seconds > STALL_TIMES * _middle(self._medians)

    def _end_cell(self, median: float) -> Stray | None:
        self._medians = [*self._medians[-3:], median]
        return self._pace.take(median)

    def _events(self, seconds: FloatArray) -> list[tuple[int, Stray | None]]:
        """The places of stalls, and of strays of the pace, in order."""
        known = np.concatenate((self._cell, seconds))
        begin = len(self._cell)
        cells = len(known) // CELL
        ordered = np.sort(known[: cells * CELL].reshape(cells, CELL), axis=1)
        medians = 0.5 * (ordered[:, CELL // 2 - 1] + ordered[:, CELL // 2])
        found: list[tuple[int, Stray | None]] = [
            (at, None) for at in self._stalls(known, begin, medians).tolist()
        ]
        for cell, stray in self._pace.sweep(medians):
            found.append((cell * CELL + CELL - 1 - begin, stray))
        self._medians = [*self._medians, *medians[-4:].tolist()][-4:]
        self._cell = known[cells * CELL :].tolist()
        return sorted(found, key=lambda event: (event[0], event[1] is not None))

    def _stalls(self, known: FloatArray, begin: int, medians: FloatArray) -> IntArray:
        """Where a step is far slower than the cells before its own."""
        all_medians = np.concatenate((self._medians, medians))
        usual = np.full(len(known) // CELL + 1, np.inf)
        lead = 4 - len(self._medians)
        if len(all_medians) >= 4:
            last = np.sort(np.lib.stride_tricks.sliding_window_view(all_medians, 4), axis=1)
            usual[lead : lead + len(last)] = 0.5 * (last[:, 1] + last[:, 2])
        limits = np.repeat(STALL_TIMES * usual, CELL)[: len(known)]
        places: IntArray = np.flatnonzero(known[begin:] > limits[begin:])
        return places

    def _stall(self, seen: Seen, seconds: float, count: int) -> Finding | None:
        """A step that stalled, of so many so far: told if it is news."""
        since, self._stalled = count - self._stalled, count
        close = [step for step in self._stalled_steps if 0 < seen.step - step <= CLOSE]
        self._stalled_steps = [*close, seen.step]
        if since > FORGOTTEN:
            self._largest = 0.0
        is_alarm = len(close) + 1 >= SEVERAL and count - self._alarmed > FORGOTTEN
        is_news = seconds > LARGER * self._largest
        self._largest = max(self._largest, seconds)
        if is_alarm:
            self._alarmed = count
        if not is_alarm and not is_news:
            return None
        return self._finding(Symptom.STALL, seen, Severity.ALARM if is_alarm else Severity.WARN)

    def _slow(self, seen: Seen, stray: Stray) -> Finding:
        facts = {"seconds": stray.value, "slowest_before": stray.high}
        return self._finding(Symptom.SLOW, seen, Severity.ALARM, facts)

    def _finding(
        self,
        symptom: Symptom,
        seen: Seen,
        severity: Severity,
        facts: dict[str, float] | None = None,
    ) -> Finding:
        return Finding(
            detector=self.name,
            symptom=symptom,
            severity=severity,
            signal=self._signal or "",
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            false_per_10k=FALSE_PER_10K.get(self.name) if severity is Severity.ALARM else None,
            facts=facts or {},
        )


def _middle(medians: list[float]) -> float:
    ordered = sorted(medians)
    return 0.5 * (ordered[1] + ordered[2])


def _first_named(block: Block) -> str | None:
    """The signal that is recorded first; of two in one record, the seconds."""
    rows = [
        (int(np.argmax(block.columns[name].present)), at, name)
        for at, name in enumerate((STEP_SECONDS, TOKENS_PER_SECOND))
        if name in block.columns and block.columns[name].recorded
    ]
    return min(rows)[2] if rows else None
