"""What trainers are known to do to the numbers that they print.

A log is read by what stands in it; this is what does not. A trainer is known by names that only it
prints, and its columns are corrected once all records are read: a mean over the log interval is
marked as one, a loss that was left out is restored, a norm that carries the loss scale is divided
by it, bits become nats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trimtab.core.block import Column, FloatArray
from trimtab.core.signals import LOSS, STEP_SECONDS, Quality
from trimtab.core.text import count_sentence
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.general.shapes import Shape
from trimtab.readers.table import Table

_SKIPPED = "number of skipped iterations"
_NAN = "number of nan iterations"
_LM_LOSS = "lm loss"
_STEP_TIME = "step time (s)"


def correct(table: Table, units: Mapping[str, str]) -> None:
    """Undo what the trainer did to the columns of a table; `units` are those of its times."""
    names = table.recorded
    if _SKIPPED in names:
        _correct_megatron(table)
    if "ups" in names or "num_updates" in names:
        _correct_fairseq(table)
    if "lrm" in names:
        _correct_nanochat(table)
    if "train_time" in names:
        _add_time_from_clock(table, 0.001 if units.get("train_time") == "ms" else 1.0)
    if {"(ms)", "norm", "tok/s"} <= names.keys():
        _mark_quality(table, "tok/s", Quality.SMOOTHED)  # llm.c prints an exponential average
    # NeMo's printer and DeepSpeed's engine print means since the last record.
    _mark_window_means(table, "reduced_train_loss", "train_step_timing in s", "iter time (s)")


# Megatron-LM, Megatron-Bridge, Megatron-DeepSpeed
#
#      iteration     100/  5000 | consumed samples: 51200 | ... | lm loss: 9.312345E+00 | ... |
#
# What it prints is not always what happened (training_log() of Megatron-LM main and of
# Megatron-Bridge 0.3.1):
#
# - The loss is the mean over the interval, of the iterations that were not skipped.
# - A mean that is NaN is not printed at all, while `number of nan iterations` stays 0: that counts
#   only among skipped iterations.
# - Where all iterations were skipped, Megatron-LM prints a loss of 0, Megatron-Bridge none.


def stand_in_for_loss(shapes: Sequence[Shape]) -> str | None:
    """Return the column whose rows are the records of a Megatron run that never had a loss."""
    names = {name for shape in shapes for name in shape.names}
    has_loss = any(name.endswith("loss") for name in names)
    return None if has_loss or not {_SKIPPED, _NAN} <= names else _SKIPPED


def _correct_megatron(table: Table) -> None:
    for unit in ("ms", "s"):
        _mark_window_means(table, _LM_LOSS, f"elapsed time per iteration ({unit})")
    _restore_losses(table)
    _unscale(table, norm="grad norm", scale="loss scale")


def _restore_losses(table: Table) -> None:
    losses = [name for name in table.recorded if name.endswith("loss")]
    if losses and _LM_LOSS not in losses:
        return  # a different task, with different names for its losses
    rows = np.flatnonzero(table.column(_SKIPPED).present)
    skipped, nan = table.column(_SKIPPED).values[rows], table.column(_NAN).values[rows]
    idle = skipped >= _window_lengths(table, _SKIPPED)
    column = table.column(_LM_LOSS)
    values, present = column.values.copy(), column.present.copy()
    unprinted = ~present[rows] | (idle & (values[rows] == 0))
    values[rows[unprinted]] = np.nan
    # An iteration may have been skipped for its gradient alone; then nothing is known of its loss.
    dropped = unprinted & (~idle | (nan > 0))
    present[rows] = dropped | ~unprinted
    table.replace(_LM_LOSS, Column(values, present))
    table.meanings.setdefault(_LM_LOSS, Alias(signal=LOSS, name=_LM_LOSS))
    if dropped.any():
        _mark_quality(table, _LM_LOSS, Quality.INFERRED)
        table.add_note(
            count_sentence(
                np.count_nonzero(dropped),
                f"record{{s}} {{has}} no {_LM_LOSS!r}, which Megatron leaves out where it is NaN: "
                "read as NaN",
            )
        )
    idle_ones = int(np.count_nonzero(unprinted & ~dropped))
    table.note_counts({"record{s} {has} no loss, as all iterations were skipped": idle_ones})


# fairseq
#
#     2026-11-15 10:00:00 | INFO | train_inner | epoch 001:   100 / 1474 loss=9.12, ppl=556.4, ...
#
# Its criteria divide the loss by log(2): it is in bits, and `ppl` is 2 to its power. Loss and
# gradient norm are means over the log interval; the norm is free of the loss scale. `num_updates`
# has six digits, so beyond a million updates steps are rounded.

_SIX_DIGITS = 1_000_000


def _correct_fairseq(table: Table) -> None:
    rate = table.column("ups")
    known = rate.finite & (rate.values > 0)
    if known.any():
        seconds = np.full(table.num_rows, np.nan)
        seconds[known] = 1 / rate.values[known]
        table.replace(_STEP_TIME, Column(seconds, known))
        table.meanings[_STEP_TIME] = Alias(signal=STEP_SECONDS, name=_STEP_TIME)
    _mark_window_means(table, "loss", "gnorm", "wps", _STEP_TIME)
    base = _base_of_loss(table)
    if base is None:
        table.add_note(
            "fairseq mostly writes its loss in bits; no 'ppl' says whether this one is, so it was "
            "left as it is."
        )
    elif base == 2:
        for name in table.recorded:
            if name.removesuffix("loss").removesuffix("nll_").removesuffix("_") in _FAIRSEQ_PARTS:
                known_as = table.meanings.get(name) or name_columns([name]).aliases[name]
                table.meanings[name] = replace(known_as, scale=math.log(2))
        table.add_note("'loss' is in bits, as 'ppl' shows; it was multiplied by log(2).")
    if np.nanmax(table.column("num_updates").values, initial=0) > _SIX_DIGITS:
        table.add_note("Steps over a million are printed with six digits, known only roughly.")


_FAIRSEQ_PARTS = ("", "valid", "eval ")


def _base_of_loss(table: Table) -> float | None:
    """Return the base whose powers of the loss make the perplexity; None if unknown."""
    perplexity = table.column("ppl")
    for name in ("loss", "nll_loss"):
        loss = table.column(name)
        rows = loss.finite & perplexity.finite & (perplexity.values > 1)
        bases = perplexity.values[rows] ** (1 / loss.values[rows])
        for base in (2.0, math.e):
            if len(bases) and abs(np.median(bases) - base) < 0.05:  # rounded to three digits
                return base
    return None


# nanochat: its loss is an exponential average (0.9, without bias) of the loss of the last
# micro-batch of rank 0: a spike is a tenth as high as it was, and one NaN stays for ever.


def _correct_nanochat(table: Table) -> None:
    if table.meanings.get("loss", Alias(signal="", name="")).signal == LOSS:
        remark = "an exponential average over some ten steps of one rank"
        table.meanings["loss"] = Alias(
            signal=LOSS, name="loss", quality=Quality.SMOOTHED, remark=remark
        )


# modded-nanogpt and parameter-golf
#
#     step:12/6200 train_loss:6.6519 train_time:428ms step_avg:213.66ms
#
# `train_time` is a clock that runs only while the model trains, and is set back after the warm-up:
# the time of a step is the way between two records.


def _add_time_from_clock(table: Table, seconds: float) -> None:
    clock, step = table.column("train_time"), table.column(STEP)
    loss = table.column("train_loss")
    rows = np.flatnonzero(loss.present & clock.finite & step.finite)
    steps, times = np.diff(step.values[rows]), np.diff(clock.values[rows])
    known = (steps > 0) & (times > 0)
    if table.meanings.get("train_time") or not known.any():
        return
    column = Column.missing(table.num_rows)
    column.values[rows[1:][known]] = times[known] * seconds / steps[known]
    column.present[rows[1:][known]] = True
    table.replace(_STEP_TIME, column)
    table.meanings[_STEP_TIME] = Alias(signal=STEP_SECONDS, name=_STEP_TIME)
    _mark_window_means(table, _STEP_TIME)


# Corrections


def _step_of(table: Table) -> FloatArray:
    names = [name for name, alias in table.meanings.items() if alias.signal == STEP]
    return table.column(names[0] if names else STEP).values


def _window_lengths(table: Table, name: str) -> FloatArray:
    """Return, for each row with a value in this column, the steps since the last such row.

    The first row, and the first after the step decreased, get the usual length.
    """
    steps = _step_of(table)[table.column(name).present]
    lengths = np.diff(steps, prepend=np.nan)
    known = lengths > 0  # false for NaN too
    return np.where(known, lengths, np.median(lengths[known]) if known.any() else 1.0)


def _mark_window_means(table: Table, *names: str) -> None:
    """Mark columns that hold means over the log interval, if that is longer than a step."""
    for name in names:
        lengths = _window_lengths(table, name)
        if len(lengths) and np.median(lengths) > 1:
            _mark_quality(table, name, Quality.WINDOW_MEAN)


def _mark_quality(table: Table, name: str, quality: Quality) -> None:
    """Lower the quality of a column to this, if it is higher."""
    known = table.meanings.get(name) or name_columns([name]).aliases[name]
    table.meanings[name] = replace(known, quality=min(quality, known.quality))


_MIN_CHANGES = 6
"""With fewer changes of the scale nothing is decided."""

_ERRORS = 4.0
"""How many standard errors the norm has to move with the scale, to be believed. Over six changes
chance does that in 5 of 1,000 runs (Student's t). Neighbouring norms differ by some 30 % (0.4 in
log2) and scales by 2 (1.0), so a norm that carries the scale shows at six errors."""


def _unscale(table: Table, *, norm: str, scale: str) -> None:
    """Divide gradient norms by the loss scale, if they still carry it.

    DeepSpeed took the norm of the scaled gradient until the end of 2021, and Megatron-DeepSpeed
    printed it as it was: 79,684 at a scale of 262,144, 2,554 at 4,096 (BigScience, 104B). No
    version stands in such a log, but the norm jumps whenever the scale does.
    """
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
    _mark_quality(table, norm, Quality.INFERRED)
    table.add_note(
        f"{norm!r} moves with {scale!r}, so it is the norm of the scaled gradient; it was divided "
        f"by the scale in {len(rows)} records."
    )


def _share(log_norm: FloatArray, log_scale: FloatArray) -> float:
    """Return how far the norm follows changes of the scale: 1 fully, 0 if chance could do it."""
    moves = np.diff(log_scale)
    changed = moves != 0
    if np.count_nonzero(changed) < _MIN_CHANGES:
        return 0.0
    shares = np.diff(log_norm)[changed] / moves[changed]
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    mean = float(np.mean(shares))
    return mean if mean > _ERRORS * error else 0.0
