"""A run beside another one: what the other recorded at the same batch, in extra columns.

    run:        step  loss  grad_norm  ...           at the same step in the reference
    becomes:    step  loss  grad_norm  ...  reference_loss  reference_grad_norm  ...

Batches are the same if their fingerprints are; where one of the two has none, if their steps are.
"""

import dataclasses

import numpy as np

from trimtab.core.block import Block, BoolArray, Column
from trimtab.core.signals import CLOCKS, FINGERPRINT, REFERENCE_OF


def lay_beside(run: Block, reference: Block) -> Block:
    """The run with the values that the reference has at the same steps."""
    steps, latest = _latest_rows(reference)
    if not len(steps):
        return run
    place = np.minimum(np.searchsorted(steps, run.step), len(steps) - 1)
    is_known = steps[place] == run.step
    rows = latest[place]
    columns = dict(run.columns)
    for name, column in reference.columns.items():
        if name not in run.columns or name in CLOCKS or name.startswith(REFERENCE_OF):
            continue
        present = is_known & column.present[rows]
        columns[REFERENCE_OF + name] = Column(
            np.where(present, column.values[rows], np.nan), present
        )
    return dataclasses.replace(run, columns=columns)


def same_batches(beside: Block) -> BoolArray:
    """Which records have the same batch in the run and in its reference."""
    ours, theirs = beside.column(FINGERPRINT), beside.column(REFERENCE_OF + FINGERPRINT)
    known = ours.present & theirs.present
    return np.asarray(~known | (ours.values == theirs.values))


def _latest_rows(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """The steps of a run in order, and the row of the last attempt at each."""
    backwards = block.step[::-1]
    steps, first = np.unique(backwards, return_index=True)
    return steps, len(block) - 1 - first
