"""Ensemble: all of trimtab's own detectors behind one door.

A short block (a live step) is taken record by record in plain Python, a long one (a log) by each
detector at once. What is found is the same; a property test cuts runs in every way to prove it.
"""

from typing import Any, Protocol

from trimtab.core.block import Block
from trimtab.core.findings import Finding
from trimtab.detect.known_events import Calendar, Known
from trimtab.detect.loss.loss_detectors import LossWatch
from trimtab.detect.loss.no_learning import NoLearning
from trimtab.detect.loss.resume_gap import Resume
from trimtab.detect.reference.reference import Reference
from trimtab.detect.run.counters import Order
from trimtab.detect.run.lr_schedule import Schedule
from trimtab.detect.run.repeated_batch import Repeats
from trimtab.detect.run.throughput import Throughput
from trimtab.detect.run.token_mix import TokenMix
from trimtab.detect.state.attention_logits import Logits
from trimtab.detect.state.frozen import Frozen
from trimtab.detect.state.loss_scale import Precision
from trimtab.detect.state.nonfinite import Integrity
from trimtab.detect.state.norm_trend import NormTrend
from trimtab.detect.state.state_jumps import Leaps
from trimtab.detect.tools.rows import Row, rows_of

SHORT = 48
"""Records up to which one by one is faster than numpy (measured)."""


class RecordDetector(Protocol):
    """A detector that takes records one by one, or many at once with the same result."""

    name: str
    hears: Known
    """What it wants to be told of."""

    def hear(self, known: Known) -> None:
        """Something happened in front of the next record."""
        ...

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        ...

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the detector remembers, in JSON's terms."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        ...


class Ensemble:
    """Trimtab's own rules, as one detector."""

    name = "trimtab"

    def __init__(self, threshold_scale: float = 1.0) -> None:
        self._calendar = Calendar()
        self._detectors: list[RecordDetector] = [
            Integrity(),
            LossWatch(threshold_scale),
            Reference(),
            Order(),
            Repeats(),
            Leaps(),
            NormTrend(),
            Schedule(),
            Frozen(),
            Precision(),
            Throughput(),
            Resume(),
            TokenMix(),
            Logits(),
            NoLearning(),
        ]

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return what was found among them, in order of tick."""
        self._calendar.announce(block.events)
        if len(block) > SHORT:
            cuts = self._calendar.sweep(block)
            found = [finding for part in self._detectors for finding in _sweep(part, block, cuts)]
            return sorted(found, key=lambda finding: finding.tick)  # stable
        return [finding for row in rows_of(block) for finding in self._take(row)]

    def state_dict(self) -> dict[str, Any]:
        """All that the detectors remember."""
        parts = {part.name: part.state_dict() for part in self._detectors}
        return {"calendar": self._calendar.state_dict(), **parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the ensemble that `state_dict` described."""
        self._calendar.load_state_dict(state["calendar"])
        for part in self._detectors:
            part.load_state_dict(state[part.name])

    def _take(self, row: Row) -> list[Finding]:
        known = self._calendar.take(row)
        if known:
            for part in self._detectors:
                if known & part.hears:
                    part.hear(known)
        findings: list[Finding] = []
        for part in self._detectors:
            findings += part.take(row)
        return findings


def _sweep(part: RecordDetector, block: Block, cuts: list[tuple[int, Known]]) -> list[Finding]:
    """Let one detector judge a block, told of what it wants to know where it happened."""
    findings: list[Finding] = []
    begin = 0
    for row, known in cuts:
        if known & part.hears:
            if row > begin:
                findings += part.sweep(block[begin:row])
            part.hear(known)
            begin = row
    return findings + part.sweep(block[begin:] if begin else block)
