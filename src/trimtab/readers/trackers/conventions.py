"""What logs of several trackers have in common.

- A tracker may count calls of log() as its step (`prefer_steps_beside_loss`).
- HF's Trainer changes the loss before it is logged (`restore_hf_losses`), wherever it goes.
"""

import numpy as np

from trimtab.core.block import BoolArray, Column
from trimtab.core.signals import LOSS, Quality
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.cells import quoted
from trimtab.readers.table import Table

CALL_STEP = "_step"
"""The column in which W&B and trackio count calls of log()."""

HF_PREFIX = "train/"
"""What HF's Trainer prepends to its names in W&B, TensorBoard and trackio."""

_HF_NAMES = ("loss", "learning_rate", "epoch")
"""Names that the Trainer logs together at every record."""


def prefer_steps_beside_loss(table: Table) -> None:
    """Make logged steps that most losses do not have values like any other.

    Any step that the run logged is better than a count of calls, but only if it is logged with the
    loss: some runs log a step with their evaluations alone.
    """
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


def restore_if_hf(table: Table, prefix: str = "") -> None:
    """Restore the losses, if the names after this prefix are those that HF's Trainer logs."""
    if {prefix + name for name in _HF_NAMES} <= table.recorded.keys():
        restore_hf_losses(table, prefix)


def restore_hf_losses(table: Table, prefix: str = "") -> None:
    """Undo what HF's Trainer did to the losses, and note how far they can be trusted.

    By default (`logging_nan_inf_filter`) a loss that is not finite is left out of the sum, so that
    the log of a run that died reads 0.0; and between two records it is the mean that is logged.
    """
    name = prefix + LOSS
    if name not in table.recorded:
        return
    losses = table.column(name)
    hidden = _hidden_losses(losses, table, prefix + "grad_norm")
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


def _hidden_losses(losses: Column, table: Table, norm: str) -> BoolArray:
    """Return where the loss was not finite and the log says 0."""
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
    """Return whether most records are more than a step apart."""
    name = name_columns(list(table.recorded), meanings=table.meanings).foreign.get(STEP)
    if name is None:
        return False
    steps = table.column(name)
    strides = np.diff(steps.values[losses.present & steps.finite])
    return len(strides) > 0 and float(np.median(strides)) > 1.0
