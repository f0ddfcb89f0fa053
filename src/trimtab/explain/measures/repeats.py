"""Repeats: whether the batches of an incident were served before, by their fingerprints."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.signals import FINGERPRINT
from trimtab.explain.context import IncidentContext

NEAR_RECORDS = 8
"""Records before the onset that are looked at too: the onset may be dated a little late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedBatch:
    """A batch that was served several times."""

    step: int
    data_position: int
    """Where it was served first, as far as the records go; negative if it is not known."""
    count: int
    """How often it was served, the first time included."""
    last_step: int
    last_data_position: int
    num_others: int
    """Other batches of the incident that were served before too."""


def repeated_batch(context: IncidentContext) -> RepeatedBatch | None:
    """The batch that was served most often during an incident; None if none came twice.

    A run that goes over its data again repeats batches by plan: it is not reported.
    """
    block, column = context.block, context.block.column(FINGERPRINT)
    if not context.has_onset:
        return None
    # Another attempt serves its batches again, as it should.
    is_same_attempt = block.attempt == block.attempt[context.onset_row]
    rows = np.flatnonzero(column.finite & is_same_attempt)
    first_row = max(context.onset_row - NEAR_RECORDS, 0)
    _, first, numbers = np.unique(column.values[rows], return_index=True, return_inverse=True)
    came_before = first[numbers] < np.arange(len(rows))
    during = (rows >= first_row) & (rows <= context.last_row)
    before = rows < first_row
    if not (came_before & during).any():
        return None
    if before.any() and came_before[before][-NEAR_RECORDS:].all():
        return None
    repeated = numbers[came_before & during]
    which = int(np.bincount(repeated).argmax())
    served = rows[numbers == which]
    return RepeatedBatch(
        step=int(block.step[served[0]]),
        data_position=int(block.data_position[served[0]]),
        count=len(served),
        last_step=int(block.step[served[-1]]),
        last_data_position=int(block.data_position[served[-1]]),
        num_others=len(np.unique(repeated)) - 1,
    )
