"""BadData: the batches that a run was relaunched because of, discarded when they come again.

A relaunch goes back to a proven checkpoint with its data, so the batches at which the run diverged
come again. The run that ends journals their positions, and the next one, on the first rank, has the
gate discard their updates. The data stream itself is not touched. Fingerprints go with the
positions: data that was shuffled anew has other batches there, and those are trained on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trimtab.core.block import NO_POSITION, Event, Record
from trimtab.core.events import RELAUNCH
from trimtab.core.signals import FINGERPRINT

BEFORE, AFTER = 2, 18
"""Steps before the onset of an incident, and from it on, whose data is not trained on again.
Source: a gradient shows 1 to 3 steps before the loss, and teams skip 5 to 20 batches at a spike."""


@dataclass(frozen=True, slots=True)
class BadData:
    """Positions of batches, each that of the first batch of a step, with their fingerprints."""

    marks: Mapping[int, float | None] = field(default_factory=dict)
    """None is a batch whose fingerprint is not known: one that was never on the host."""

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> "BadData":
        """Read what earlier attempts have journalled; a damaged event says nothing."""
        lists = (e.facts.get("bad_data") for e in events if e.kind == RELAUNCH)
        entries = (entry for given in lists if isinstance(given, list) for entry in given)
        return cls({entry[0]: entry[1] for entry in entries if _is_entry(entry)})

    @classmethod
    def around(cls, onset: int, records: Iterable[Record]) -> "BadData":
        """Return the data of the steps around the onset of an incident, as far as it is known."""
        near = (r for r in records if onset - BEFORE <= r.step < onset + AFTER)
        known = (r for r in near if r.data_position != NO_POSITION)
        return cls({r.data_position: r.signals.get(FINGERPRINT) for r in known})

    def to_json(self) -> list[tuple[int, float | None]]:
        return sorted(self.marks.items())

    def has(self, position: int, mark: float | None) -> bool:
        """Return whether the step that begins at a position, with a fingerprint, is discarded."""
        if position not in self.marks:
            return False
        known = self.marks[position]
        return known is None or mark is None or known == mark


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 2:
        return False
    position, mark = entry
    is_position = isinstance(position, int) and position != NO_POSITION
    return is_position and (mark is None or isinstance(mark, int | float))
