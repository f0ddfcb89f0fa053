"""Gradient norms that still carry the loss scale.

DeepSpeed took the norm of the scaled gradient until the end of 2021, and Megatron-DeepSpeed
printed it as it was: 79,684 at a scale of 262,144, 2,554 at 4,096 (BigScience, 104B). No version
stands in such a log, but the norm jumps whenever the scale does.
"""

import numpy as np

from trimtab.core.block import Column, FloatArray
from trimtab.core.signals import Quality
from trimtab.readers.table import Table
from trimtab.readers.text.windows import mark_quality

FEWEST_CHANGES = 4
"""With fewer changes of the scale, chance could decide."""

CLEARLY = 0.75
"""The norm without the scale has to move by less than this share of what the printed one moves,
where the scale changes. Neighbouring norms differ by some 30 % (0.4 in log2), scales by 2 (1.0):
that makes 0.57 if the norm carries the scale, and 1.75 if it does not."""


def unscale(table: Table, *, norm: str, scale: str) -> None:
    """Divide the norms by the scale, if they move with it."""
    norms, scales = table.column(norm), table.column(scale)
    rows = np.flatnonzero(norms.finite & scales.finite & (norms.values > 0) & (scales.values > 0))
    log_norm, log_scale = np.log2(norms.values[rows]), np.log2(scales.values[rows])
    changes = np.flatnonzero(np.diff(log_scale)) + 1
    if len(changes) < FEWEST_CHANGES:
        return
    # The scale of the row itself, or that of the row before: some print it after its update.
    before = np.concatenate([log_scale[:1], log_scale[:-1]])
    carried = min(log_scale, before, key=lambda scale: _movement(log_norm - scale, changes))
    if _movement(log_norm - carried, changes) > CLEARLY * _movement(log_norm, changes):
        return
    values = norms.values.copy()
    values[rows] = np.exp2(log_norm - carried)
    table.replace(norm, Column(values, norms.present))
    mark_quality(table, norm, Quality.INFERRED)
    table.tell(
        f"{norm!r} jumps with {scale!r}, so it is the norm of the scaled gradient; it was divided "
        f"by the scale in {len(rows)} records."
    )


def _movement(log_norm: FloatArray, changes: np.typing.NDArray[np.intp]) -> float:
    """How far the norm moves where the scale changes, and right after."""
    moves = np.abs(np.diff(log_norm, append=log_norm[-1]))
    return float(np.median(moves[changes - 1] + moves[changes]))
