"""What HF's Trainer does to the loss before it is logged: noted, and undone where possible.

By default (`logging_nan_inf_filter`) a loss that is not finite is left out of the sum, so that the
log of a run that died reads 0.0; and between two records it is the mean that is logged.
"""

import numpy as np

from trimtab.core.block import BoolArray, Column
from trimtab.core.signals import LOSS, Quality
from trimtab.readers.aliases import Alias, name_columns
from trimtab.readers.quoting import quoted
from trimtab.readers.table import Table

_MARKS = ("loss", "learning_rate", "epoch")
"""Names that the Trainer logs together at every record."""


def is_by_hf(table: Table, prefix: str) -> bool:
    """Whether the names in a table, after this prefix, are those that HF's Trainer logs."""
    return {prefix + mark for mark in _MARKS} <= table.recorded.keys()


def restore_hf_losses(table: Table, prefix: str = "") -> None:
    """Make the losses of HF's Trainer what they were, and say how far they can be trusted."""
    name = prefix + LOSS
    if name not in table.recorded:
        return
    losses = table.column(name)
    hidden = _hidden(losses, table, prefix + "grad_norm")
    quality = Quality.RAW
    if _is_thinned(table, losses):
        quality = Quality.WINDOW_MEAN
        table.add_note(
            f"HF's Trainer logs the mean of {quoted(name)} since the previous record: a short "
            "spike is higher than it looks."
        )
    if hidden.any():
        quality = Quality.INFERRED
        values = np.where(hidden, np.nan, losses.values)
        table.replace(name, Column(values, losses.present))
        table.add_note(
            f"Values of {quoted(name)} that are exactly 0 beside a gradient norm that is 0 or not "
            "finite, treated as NaN, which HF's Trainer writes this way: "
            f"{np.count_nonzero(hidden)}."
        )
    table.meanings[name] = Alias(signal=LOSS, name=name, quality=quality)


def _hidden(losses: Column, table: Table, norm: str) -> BoolArray:
    """Where the loss was not finite and the log says 0."""
    zero = losses.present & (losses.values == 0.0)
    if norm not in table.recorded:
        if zero.any():
            table.add_note(
                f"Losses of exactly 0: {np.count_nonzero(zero)}. HF's Trainer writes NaN this way, "
                "but without a gradient norm they are left as they are."
            )
        return np.zeros_like(zero)
    norms = table.column(norm)
    plausible = np.isfinite(norms.values) & (norms.values != 0.0)
    return np.asarray(zero & norms.present & ~plausible)


def _is_thinned(table: Table, losses: Column) -> bool:
    """Whether most records are more than a step apart."""
    name = name_columns(list(table.recorded), meanings=table.meanings).foreign.get("step")
    if name is None:
        return False
    steps = table.column(name)
    strides = np.diff(steps.values[losses.present & steps.finite])
    return len(strides) > 0 and float(np.median(strides)) > 1.0
