"""The batch of one step, examined from the data files alone."""

import numpy as np

from trimtab.core.block import IntArray
from trimtab.core.errors import ConfigError
from trimtab.corpus.order import RowSequence
from trimtab.journal.batches.batch_report import BatchReport, KeptBatches, examine
from trimtab.journal.batches.rows import KeptBatch

BASE_BATCHES = 64
"""Batches spread over the data that tell what is usual, for the rows of one step."""


def examine_step(
    rows: RowSequence, step_rows: int, step: int, counts: IntArray | None = None
) -> BatchReport:
    """Report on the rows of one step of a run, from its data; a row's position is its number.

    Args:
        rows: Token ids, in the order of the run.
        step_rows: Rows of a step.
        step: Which one.
        counts: How often each token occurs in the whole data; None: as in a sample of it.
    """
    num_steps = len(rows) // step_rows
    if step >= num_steps:
        raise ConfigError(f"step {step} is beyond the {num_steps} steps of the data")

    def batch(at: int) -> KeptBatch:
        chosen = range(at * step_rows, (at + 1) * step_rows)
        parts = tuple(np.asarray(rows[row], dtype=np.int32).reshape(1, -1) for row in chosen)
        return KeptBatch(tick=at, step=at, data_position=0, parts=parts)

    spread = np.unique(np.linspace(0, num_steps - 1, BASE_BATCHES).astype(int)).tolist()
    report = examine(
        KeptBatches(
            onset_tick=step,
            peak_tick=step,
            before=tuple(batch(at) for at in spread if at != step),
            around=(batch(step),),
            counts=np.zeros(0, dtype=np.int64) if counts is None else counts,
        )
    )
    if report is None:
        raise ConfigError(f"step {step} has no rows")
    return report
