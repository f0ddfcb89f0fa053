"""BoundaryMark: what belongs to a boundary between two steps besides the snapshot of the run."""

from dataclasses import dataclass

from trimtab.live.measure.batch_facts import TokensSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryMark:
    """Where the run is, as far as only trimtab and the data need to know."""

    position: int
    """Data position of the next batch."""
    num_updates: int
    """Updates that the measuring of telemetry has counted."""
    tokens: TokensSeen
    """The tokens that batches are compared with."""
