"""Ensemble: all of trimtab's own detectors behind one door.

A short block (a live step) is taken record by record in plain Python, a long one (a log) by each
detector at once. What is found is the same; a property test cuts runs in every way to prove it.
"""

from typing import Any, Protocol

from trimtab.core.block import Block
from trimtab.core.findings import Finding
from trimtab.detect.integrity import Integrity
from trimtab.detect.loss_watch import LossWatch
from trimtab.detect.reference import Reference
from trimtab.detect.rows import Row, rows_of

SHORT = 48
"""Records up to which one by one is faster than numpy (measured)."""


class RecordDetector(Protocol):
    """A detector that takes records one by one, or many at once with the same result."""

    name: str

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

    def __init__(self, caution: float = 1.0) -> None:
        self._detectors: list[RecordDetector] = [Integrity(), LossWatch(caution), Reference()]

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return what was found among them, in order of tick."""
        if len(block) > SHORT:
            found = [finding for part in self._detectors for finding in part.sweep(block)]
            return sorted(found, key=lambda finding: finding.tick)  # stable
        return [
            finding
            for row in rows_of(block)
            for part in self._detectors
            for finding in part.take(row)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that the detectors remember."""
        return {part.name: part.state_dict() for part in self._detectors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the ensemble that `state_dict` described."""
        for part in self._detectors:
            part.load_state_dict(state[part.name])
