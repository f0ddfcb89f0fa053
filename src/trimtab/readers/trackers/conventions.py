"""What logs of several trackers have in common.

- A tracker may count calls of log() as its step (`correct_tracker`).
- HF's Trainer changes the loss before it is logged (`restore_hf_losses`), wherever it goes.
"""

import numpy as np

from trimtab.core import signals
from trimtab.core.block import BoolArray, Column
from trimtab.core.signals import LOSS, Quality
from trimtab.core.text import count_sentence
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.cells import quoted
from trimtab.readers.table import Table

CALL_STEP = "_step"
"""The column in which W&B and trackio count calls of log()."""

_HF_PREFIX = "train/"
"""What HF's Trainer prepends to its names in W&B, TensorBoard and trackio."""

_POLICY_SIGNALS = (
    *(signals.REWARD, signals.REWARD_STD, signals.KL, signals.CLIP_FRACTION, signals.RATIO),
    *(signals.ADVANTAGE_STD, signals.NO_SIGNAL_SHARE),
)

_SEVERAL = 3
"""Zeros in a row that are no chance."""

_BEFORE = 4
_NEAR_ZERO = 0.01
"""Chosen: a hundred times the smallest loss of the Trainer, which rounds to four decimals."""

_HF_NAMES = ("loss", "learning_rate", "epoch")
"""Names that the Trainer logs together at every record."""


def correct_tracker(table: Table) -> None:
    """Choose the step of a tracker that counts calls, and restore the losses of HF's Trainer."""
    _prefer_steps_beside_loss(table)
    restore_if_hf(table)


def _prefer_steps_beside_loss(table: Table) -> None:
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


def restore_if_hf(table: Table) -> None:
    """Restore the losses, if the names are those that HF's Trainer logs."""
    for prefix in ("", _HF_PREFIX):
        if has_hf_names(table, prefix):
            restore_hf_losses(table, prefix)


def has_hf_names(table: Table, prefix: str = "") -> bool:
    """Return whether the columns after this prefix are those that HF's Trainer logs."""
    return {prefix + name for name in _HF_NAMES} <= table.recorded.keys()


def name_summary(table: Table) -> None:
    """Keep apart the mean over the whole run that HF's Trainer logs at the end."""
    table.meanings["train_loss"] = Alias(signal="train_loss", name="train_loss")


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
    table.meanings[name] = Alias(signal=LOSS, name=name, quality=quality)


def _hidden_losses(losses: Column, table: Table, norm: str) -> BoolArray:
    """Return where the loss was not finite and the log says 0, and note why."""
    zero = losses.present & (losses.values == 0.0)
    if norm not in table.recorded:
        if zero.any():
            table.add_note(
                count_sentence(
                    np.count_nonzero(zero),
                    "record{s} {has} loss 0, which HF's Trainer writes for NaN: read as 0, as "
                    "there is no gradient norm to tell by",
                )
            )
        return np.zeros_like(zero)
    norms = table.column(norm)
    zero &= norms.present
    hidden = zero & ~np.isfinite(norms.values)
    stuck = np.zeros_like(hidden)
    if not _has_policy(table):
        hidden |= zero & (norms.values == 0.0)
        stuck = _stuck(losses, zero, norms) & ~hidden
    table.note_counts(
        {
            "record{s} {has} loss 0 and a gradient norm that is 0 or not finite: read as NaN, "
            "which HF's Trainer logs as 0": int(hidden.sum()),
            "record{s} {has} loss 0 and a gradient norm that no longer changes: read as NaN, as "
            "DeepSpeed ZeRO 3 reports such a norm where it is not finite": int(stuck.sum()),
        }
    )
    return np.asarray(hidden | stuck)


def _has_policy(table: Table) -> bool:
    """Return whether this is RL, where a batch of equal rewards has neither loss nor gradient."""
    names = list(table.recorded)
    found = name_columns(names, meanings=table.meanings).foreign
    # TRL's SFTTrainer logs an entropy too, with the accuracy of its tokens.
    is_supervised = any("token_accuracy" in name for name in names)
    return any(
        name.partition("/")[0] in _POLICY_SIGNALS or (name == signals.ENTROPY and not is_supervised)
        for name in found
    )


def _stuck(losses: Column, zero: BoolArray, norms: Column) -> BoolArray:
    """Return where the loss fell to 0 at once, and stays there beside one and the same norm.

    A task that is solved comes near 0 first, and its norm is not the same twice.
    """
    stuck = np.zeros_like(zero)
    rows = np.flatnonzero(losses.present)
    borders = np.flatnonzero(np.diff(zero[rows])) + 1
    for stretch in np.split(rows, borders):
        before = losses.values[rows[rows < stretch[0]][-_BEFORE:]]
        constant = len(np.unique(norms.values[stretch])) == 1
        if zero[stretch[0]] and len(stretch) >= _SEVERAL and constant and len(before):
            stuck[stretch] = np.median(before) > _NEAR_ZERO
    return stuck


def _is_thinned(table: Table, losses: Column) -> bool:
    """Return whether most records are more than a step apart."""
    name = name_columns(list(table.recorded), meanings=table.meanings).foreign.get(STEP)
    if name is None:
        return False
    steps = table.column(name)
    strides = np.diff(steps.values[losses.present & steps.finite])
    return len(strides) > 0 and float(np.median(strides)) > 1.0


# The export of a chart of W&B: Step, RUN - METRIC, RUN - METRIC__MIN, RUN - METRIC__MAX, ...
#
# For a single run, the names come without `RUN - `. A point may represent many steps: then it is
# their mean, and MIN and MAX show the spread.

_MIN, _MAX = "__MIN", "__MAX"


def correct_export(table: Table) -> None:
    """Remove the bounds that say nothing, and mark a loss that is a mean over steps."""
    if not any(name.endswith(_MAX) for name in table.names):
        return
    restore_if_hf(table)
    loss = name_columns(list(table.recorded)).foreign.get(LOSS)
    for name in table.names:
        if not {name + _MIN, name + _MAX} <= set(table.names):
            continue
        low, high = table.column(name + _MIN), table.column(name + _MAX)
        differ = low.present & high.present & (low.values < high.values)
        if not differ.any():
            table.remove(name + _MIN)
            table.remove(name + _MAX)
        elif name == loss:
            table.meanings[name] = Alias(signal=LOSS, name=name, quality=Quality.WINDOW_MEAN)
            table.add_note(
                f"Values of {quoted(name)} that are means over several steps, as W&B exports long "
                f"runs: {np.count_nonzero(differ)}; an offline .wandb file holds every step."
            )
