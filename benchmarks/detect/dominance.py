"""Does any peer dominate? A peer may be quieter or find more; it should not do both.

Two questions, per peer and split:
- A peer with more false alarms: where does it find more than 5 points more than we do?
- A peer with as few or fewer: on which of the hard faults do we not find at least 50 points more?
"""

from dataclasses import dataclass

from benchmarks.detect.figures import Recall, event_recall, fault_recall
from benchmarks.detect.injections import HARD, SHAPES
from benchmarks.detect.material import VARIANTS
from benchmarks.detect.measure import Result

BEHIND = 0.05
AHEAD = 0.50


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """One row on which we are not as good as we want to be against one peer."""

    row: str
    ours: Recall
    peer: Recall
    is_chance: bool
    """Whether a noisier peer finds hardly more than its alarms would hit without a fault."""

    def __str__(self) -> str:
        """The row with both recalls and the peer's chance, in percent."""
        text = f"{self.row}: {100 * self.ours.share:.0f} against {100 * self.peer.share:.0f}"
        return f"{text} (its chance {100 * self.peer.chance:.0f})"


def weaknesses(ours: Result, peer: Result) -> list[Weakness]:
    """The rows that answer the question that fits the peer."""
    is_noisier = peer.num_false > ours.num_false
    rows_of, margin = (_all_rows, -BEHIND) if is_noisier else (_hard_rows, AHEAD)
    mine, theirs = rows_of(ours), rows_of(peer)
    return [
        Weakness(
            row=name,
            ours=recall,
            peer=theirs[name],
            is_chance=is_noisier and theirs[name].share - theirs[name].chance <= BEHIND,
        )
        for name, recall in mine.items()
        if recall.total and recall.share < theirs[name].share + margin
    ]


def _all_rows(result: Result) -> dict[str, Recall]:
    events = {
        f"{confidence} confidence": event_recall(result, (confidence,))
        for confidence in ("high", "medium")
    }
    return events | _faults(result, tuple(shape.kind for shape in SHAPES))


def _hard_rows(result: Result) -> dict[str, Recall]:
    return _faults(result, HARD)


def _faults(result: Result, kinds: tuple[str, ...]) -> dict[str, Recall]:
    return {
        f"{kind}, {variant}": fault_recall(result, kind, variant)
        for kind in kinds
        for variant in VARIANTS
    }
