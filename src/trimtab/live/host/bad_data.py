"""BadData: the batches that a run was relaunched because of, discarded when they come again.

A relaunch goes back to a proven checkpoint with its data, so the batches at which the run diverged
come again. The run that ends journals their positions, and the next one, on the first rank, has the
gate discard their updates. The data stream itself is not touched.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.core.block import NO_POSITION, Event, Record
from trimtab.core.events import RELAUNCH

BEFORE, AFTER = 2, 18
"""Steps before the onset of an incident, and from it on, whose data is not trained on again.
Source: a gradient shows 1 to 3 steps before the loss, and teams skip 5 to 20 batches at a spike."""


@dataclass(frozen=True, slots=True)
class BadData:
    """Positions of batches, each that of the first batch of a step."""

    positions: frozenset[int] = frozenset()

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> "BadData":
        """Read what earlier attempts have journalled; a damaged event says nothing."""
        lists = (e.facts.get("bad_data") for e in events if e.kind == RELAUNCH)
        return cls(
            frozenset(
                position
                for given in lists
                if isinstance(given, list)
                for position in given
                if isinstance(position, int) and position != NO_POSITION
            )
        )

    @classmethod
    def around(cls, onset: int, records: Iterable[Record]) -> "BadData":
        """Return the data of the steps around the onset of an incident, as far as it is known."""
        near = (r for r in records if onset - BEFORE <= r.step < onset + AFTER)
        return cls(frozenset(r.data_position for r in near if r.data_position != NO_POSITION))

    def has(self, position: int) -> bool:
        """Return whether the step that begins at a position is to be discarded."""
        return position in self.positions
