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

MIN_CHANGES = 6
"""With fewer changes of the scale nothing is decided."""

ERRORS = 4.0
"""How many standard errors the norm has to move with the scale, to be believed. Over six changes
chance does that in 5 of 1,000 runs (Student's t). Neighbouring norms differ by some 30 % (0.4 in
log2) and scales by 2 (1.0), so a norm that carries the scale shows at six errors."""


def unscale(table: Table, *, norm: str, scale: str) -> None:
    """Divide the norms by the scale, if they move with it."""
    norms, scales = table.column(norm), table.column(scale)
    rows = np.flatnonzero(norms.finite & scales.finite & (norms.values > 0) & (scales.values > 0))
    log_norm, log_scale = np.log2(norms.values[rows]), np.log2(scales.values[rows])
    # The scale of the row itself, or that of the row before: some print it after its update.
    before = np.concatenate([log_scale[:1], log_scale[:-1]])
    carried = max(log_scale, before, key=lambda scale: _share(log_norm, scale))
    if _share(log_norm, carried) < 0.5:
        return
    values = norms.values.copy()
    values[rows] = np.exp2(log_norm - carried)
    table.replace(norm, Column(values, norms.present))
    mark_quality(table, norm, Quality.INFERRED)
    table.add_note(
        f"{norm!r} moves with {scale!r}, so it is the norm of the scaled gradient; it was divided "
        f"by the scale in {len(rows)} records."
    )


def _share(log_norm: FloatArray, log_scale: FloatArray) -> float:
    """How far the norm follows the scale where it changes: 1 if fully, 0 if chance could do it."""
    moves = np.diff(log_scale)
    changed = moves != 0
    if np.count_nonzero(changed) < MIN_CHANGES:
        return 0.0
    shares = np.diff(log_norm)[changed] / moves[changed]
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    mean = float(np.mean(shares))
    return mean if mean > ERRORS * error else 0.0
