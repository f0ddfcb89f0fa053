"""The step of stores that count calls of log() themselves (W&B, trackio).

Any step that the run logged is better than that count, but only if it is logged with the loss: some
runs log a step with their evaluations alone.
"""

import numpy as np

from trimtab.core.signals import LOSS
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.table import Table

CALL_STEP = "_step"
"""The column of the store's own count."""


def prefer_steps_beside_loss(table: Table) -> None:
    """Let logged steps that most losses do not have be values like any other."""
    recorded = list(table.recorded)
    loss = name_columns(recorded, meanings=table.meanings).foreign.get(LOSS)
    if loss is None:
        return
    with_loss = table.rows_with([loss])
    for name in recorded:
        if name != CALL_STEP and STEP in name_columns([name]).foreign:
            beside = np.count_nonzero(table.rows_with([name]) & with_loss)
            if 2 * beside < np.count_nonzero(with_loss):
                table.meanings[name] = Alias(signal=name, name=name)
