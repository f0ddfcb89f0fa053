"""Text logs whose numbers need a correction once the whole log is read.

A mean over the log interval is marked as one, a loss that was not printed is restored, a norm that
carries the loss scale is divided by it, samples and epochs are counted in steps.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trimtab.core.block import Column, FloatArray
from trimtab.core.signals import EVAL_LOSS, LOSS, STEP_SECONDS, TOKENS_PER_SECOND, Quality
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.json_log import decode_json
from trimtab.readers.table import Table
from trimtab.readers.text.parser import (
    NUMBER,
    Fields,
    Grammar,
    LinePlace,
    Pairs,
    TextLine,
    text_format,
)

# Megatron-LM, Megatron-Bridge, Megatron-DeepSpeed: one line a log interval, fields between bars.
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

_LM_LOSS = "lm loss"
_SKIPPED = "number of skipped iterations"
_NAN = "number of nan iterations"

_megatron_fields = Pairs(r" ([^|:]{1,99}): +", r"[^| ]++", r" +\|")


def _finish_megatron(table: Table) -> None:
    """Mark window means, and restore losses that were not printed."""
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
    if dropped.any():
        _mark_quality(table, _LM_LOSS, Quality.INFERRED)
        table.add_note(
            f"Records in which {_LM_LOSS!r} was not printed, as Megatron does with NaN; treated as "
            f"NaN: {np.count_nonzero(dropped)}."
        )
    idle_ones = int(np.count_nonzero(unprinted & ~dropped))
    table.note_counts({"Records in which all iterations were skipped, without a loss": idle_ones})


MEGATRON = text_format(
    Grammar(
        name="megatron",
        trainer="Megatron-LM",
        sign=re.compile(r"(?:^|\s)iteration +\d+/ *\d+ \| +(?:consumed samples|elapsed time)"),
        lines=(
            TextLine(
                mark="iteration ",
                pattern=re.compile(r"(?:^|\s)iteration +(?P<step>\d+)/ *\d+ \|"),
                fields=_megatron_fields,
            ),
            TextLine(
                mark="validation loss at iteration",
                pattern=re.compile(
                    r"validation loss at iteration +(?P<step>\d+)(?: on \w+ set)? \|"
                ),
                fields=_megatron_fields,
                prefix="validation ",
            ),
        ),
        meanings=(Alias(signal=EVAL_LOSS, name="validation lm loss value"),),
        finish=_finish_megatron,
    )
)


# DeepSpeed: its pipeline engine, DeepSpeed-Chat, and what any engine says between the records.
#
#     steps: 20 loss: 7.5123 iter time (s): 0.812 samples/sec: 39.409
#     epoch: 0|step: 19|ppo_ep: 1|act_loss: 0.0123|cri_loss: 0.0456|unsuper_loss: 0.0
#     [...] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=2, lr=[9.65e-06], mom=[...]
#
# The loss is that of the step, the time a mean over the interval. DeepSpeed-Chat counts its steps
# anew in each epoch, and its loss is the actor's. A plain engine prints no loss at all.


def _finish_deepspeed(table: Table) -> None:
    """Count steps across epochs, and mark window means."""
    _mark_window_means(table, "iter time (s)")
    epoch, step = table.column("epoch"), table.column(STEP)
    moves = np.diff(step.values)
    restarts = (np.diff(epoch.values) > 0) & (moves <= 0)
    if not restarts.any():
        return
    shifts = np.concatenate([[0.0], np.cumsum(np.where(restarts, 1 - moves, 0.0))])
    table.replace(STEP, Column(step.values + shifts, step.present))
    table.add_note(
        f"Epochs in which the step count starts again, joined: {np.count_nonzero(restarts)}."
    )


DEEPSPEED = text_format(
    Grammar(
        name="deepspeed",
        trainer="DeepSpeed",
        sign=re.compile(r"steps: \d+ loss: |[Ee]poch: \d+ ?\| ?[Ss]tep: \d+ ?\|"),
        lines=(
            TextLine(
                mark="steps: ",
                pattern=re.compile(r"steps: (?P<step>\d+) (?=loss: )"),
                fields=Pairs(r"([^:]{1,99}): ", NUMBER, " ?"),
            ),
            TextLine(
                mark="step: ",
                pattern=re.compile(r"epoch: (?P<epoch>\d+)\|step: (?P<step>\d+)\|"),
                fields=Pairs(r"([^|:]{1,99}): *", NUMBER),
            ),
            TextLine(
                mark="Step: ",
                pattern=re.compile(r"Epoch: (?P<epoch>\d+) \| Step: (?P<step>\d+) \| "),
                fields=Pairs(r"([^|: ][^|:]{0,99}): *", NUMBER),
            ),
            TextLine(
                mark="verage reward score: ",
                pattern=re.compile(rf"verage reward score: (?P<average_reward>{NUMBER})"),
                place=LinePlace.ABOVE,
            ),
            TextLine(
                mark="skipped=",
                pattern=re.compile(
                    rf"\] step=\d+, skipped=(?P<skipped_steps>\d+), lr=\[(?P<lr>{NUMBER})"
                ),
                place=LinePlace.BELOW,
            ),
            TextLine(
                mark="OVERFLOW! ",
                pattern=re.compile(r"OVERFLOW! (?:.*, reducing to (?P<loss_scale>\d+))?"),
                place=LinePlace.BELOW,
                count="n_overflow",
            ),
        ),
        meanings=(
            Alias(signal=LOSS, name="act_loss", remark="the loss of the actor"),
            Alias(signal=LOSS, name="Actor Loss", remark="the loss of the actor"),
            Alias(signal=STEP_SECONDS, name="iter time (s)"),
        ),
        finish=_finish_deepspeed,
    )
)


# NeMo: the progress printer of NeMo 2, and the recipes of NeMo Automodel.
#
#     Training epoch 0, iteration 99/1000 | lr: 0.0003 | global_step: 99 | reduced_train_loss: 7.21
#     step 12 | epoch 0 | loss 2.3170 | grad_norm 0.8125 | lr 1.00e-05 | mem 17.31 GiB | ...
#
# The printer divides sums over its interval by its length: all its fields but `global_step` are
# means, printed with four digits. `val_loss` is in every line until the next evaluation. Automodel
# prints the values of the step.

_recipe_fields = Pairs(r"\| (\w{1,99}) ", NUMBER)


def _finish_nemo(table: Table) -> None:
    """Tell the printer's means from values of one step."""
    _mark_window_means(table, "reduced_train_loss", "train_step_timing in s", step="iteration")


NEMO = text_format(
    Grammar(
        name="nemo",
        trainer="NeMo",
        sign=re.compile(
            r"Training epoch \d+, iteration \d+/\d+ \| |step \d+ \| epoch \d+ \| \w+ \S+ \| "
        ),
        lines=(
            TextLine(
                mark="Training epoch ",
                pattern=re.compile(r"Training epoch \d+, iteration (?P<iteration>\d+)/\d+"),
                fields=Pairs(r"\| ([^|:]{1,99}): ", NUMBER),
            ),
            TextLine(
                mark="[val] ",
                pattern=re.compile(r"\[val\] .*?\bstep (?P<step>\d+) (?=\| epoch )"),
                fields=_recipe_fields,
                prefix="val_",
            ),
            TextLine(
                mark="step ",
                pattern=re.compile(r"step (?P<step>\d+) (?=\| epoch )"),
                fields=_recipe_fields,
            ),
        ),
        meanings=(
            Alias(signal=STEP_SECONDS, name="train_step_timing in s"),
            Alias(signal=EVAL_LOSS, name="val_loss"),
            Alias(signal=TOKENS_PER_SECOND, name="tps"),
        ),
        finish=_finish_nemo,
    )
)


# MLPerf: `:::MLLOG` lines, one JSON object each, among whatever else the run prints.
#
#     :::MLLOG {"key": "tracked_stats", "value": {"train_loss": 7.5}, "metadata": {"step": 9}}
#
# Only what brings a step and a loss, or the result of an evaluation, is a record: throughput is
# reported for whole blocks, with the step at which the block began. Many submissions count samples
# where the name says step.

_BATCH_SIZE = "global_batch_size"

_MLPERF_STEPS = ("step", "step_num", "samples_count")


def _finish_mlperf(table: Table) -> None:
    """Count updates where samples were counted."""
    batch, step = table.column(_BATCH_SIZE), table.column(STEP)
    size = batch.values[batch.finite][:1]
    known = step.values[step.finite]
    if not len(size) or size[0] <= 1 or not known.any() or (known % size[0]).any():
        return
    table.replace(STEP, Column(step.values / size[0], step.present))
    table.add_note(f"Steps are counted in samples; they were divided by the batch of {size[0]:g}.")


def _mlperf_fields(rest: str) -> Iterator[tuple[str, object]]:
    try:
        event, _ = decode_json(rest)
    except (ValueError, RecursionError):
        return
    metadata, key, value = event.get("metadata"), event.get("key"), event.get("value")
    if not isinstance(metadata, dict) or not isinstance(key, str):
        return
    values: dict[str, Any] = value if isinstance(value, dict) else {key: value}
    steps = [metadata[name] for name in _MLPERF_STEPS if name in metadata]
    if steps and any("loss" in name or name == "eval_accuracy" for name in values):
        yield STEP, steps[0]
        yield from values.items()


MLPERF = text_format(
    Grammar(
        name="mlperf",
        trainer="an MLPerf submission",
        sign=re.compile(r":::MLLOG \{"),
        lines=(
            TextLine(
                mark='"global_batch_size"',
                pattern=re.compile(
                    rf':::MLLOG .*"key": "{_BATCH_SIZE}", "value": (?P<{_BATCH_SIZE}>\d+)'
                ),
                place=LinePlace.BELOW,
            ),
            TextLine(
                mark=":::MLLOG ", pattern=re.compile(r":::MLLOG (?=\{)"), fields=_mlperf_fields
            ),
        ),
        meanings=(Alias(signal=STEP_SECONDS, name="train_step_time"),),
        finish=_finish_mlperf,
    )
)


# fairseq: JSON (`--log-format json`, the default under hydra) or `name=value` (`simple`).
#
#     [2026-11-15 10:00:00,000][train_inner][INFO] - {"epoch": 1, "loss": "9.12", "ppl": "556.4"}
#     2026-11-15 10:00:00 | INFO | train_inner | epoch 001:   100 / 1474 loss=9.12, ppl=556.4, ...
#
# Its criteria divide the loss by log(2): it is in bits, and `ppl` is 2 to its power. Loss and
# gradient norm are means over the log interval; the norm is free of the loss scale. `num_updates`
# has six digits, so beyond a million updates steps are rounded. The mean over an epoch, printed at
# its end, is not read.

_FAIRSEQ_STEP_TIME = "1/ups"

_FAIRSEQ_LOSSES = ("loss", "nll_loss", "valid_loss", "valid_nll_loss")
_SIX_DIGITS = 1_000_000


def _finish_fairseq(table: Table) -> None:
    """Take the loss from bits to nats, and the time of a step from the updates a second."""
    _add_step_time(table)
    _mark_window_means(table, "loss", "gnorm", "wps", _FAIRSEQ_STEP_TIME, step="num_updates")
    base = _base_of_loss(table)
    if base is None:
        table.add_note(
            "fairseq mostly writes its loss in bits; no 'ppl' says whether this one is, so it was "
            "left as it is."
        )
    elif base == 2:
        for name in _FAIRSEQ_LOSSES:
            known = table.meanings.get(name, Alias(signal=name, name=name))
            table.meanings[name] = replace(known, scale=math.log(2))
        table.add_note("'loss' is in bits, as 'ppl' shows; it was multiplied by log(2).")
    if np.nanmax(table.column("num_updates").values, initial=0) > _SIX_DIGITS:
        table.add_note("Steps over a million are printed with six digits, known only roughly.")


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


def _add_step_time(table: Table) -> None:
    rate = table.column("ups")
    known = rate.finite & (rate.values > 0)
    seconds = np.full(table.num_rows, np.nan)
    seconds[known] = 1 / rate.values[known]
    table.replace(_FAIRSEQ_STEP_TIME, Column(seconds, known))


def _fairseq_fields(prefix: str = "") -> Callable[[str], Fields]:
    """Return a parser of JSON objects; an evaluation has its step under its prefix."""

    def fields(rest: str) -> Iterator[tuple[str, object]]:
        try:
            found, _ = decode_json(rest)
        except (ValueError, RecursionError):
            return
        for name, value in found.items():
            yield (name.removeprefix(prefix) if name.endswith("num_updates") else name), value

    return fields


FAIRSEQ = text_format(
    Grammar(
        name="fairseq",
        trainer="fairseq",
        sign=re.compile(r"train_inner\b.{0,20}\{\"|train_inner \| epoch \d+: +\d+ / \d+ \w+="),
        lines=(
            TextLine(
                mark="train_inner",
                pattern=re.compile(r"train_inner\b.{0,20}(?=\{\")"),
                fields=_fairseq_fields(),
            ),
            TextLine(
                mark="train_inner",
                pattern=re.compile(r"train_inner \| epoch \d+: +\d+ / \d+ (?=\w)"),
                fields=Pairs(r"(\w{1,99})=", NUMBER),
            ),
            TextLine(
                mark='{"epoch": ',
                pattern=re.compile(r"valid\b.{0,20}(?=\{\")"),
                fields=_fairseq_fields("valid_"),
            ),
            TextLine(
                mark=" subset | ",
                pattern=re.compile(
                    rf"valid on '[^']*' subset \|(?=.* num_updates (?P<num_updates>{NUMBER}))"
                ),
                fields=Pairs(r" (\w{1,99}) ", NUMBER),
                prefix="valid_",
            ),
            TextLine(
                mark="gradient overflow detected",
                pattern=re.compile("gradient overflow detected"),
                place=LinePlace.BELOW,
                count="n_overflow",
            ),
        ),
        meanings=(
            Alias(signal=STEP, name="num_updates"),
            Alias(signal=LOSS, name="loss"),
            Alias(signal=EVAL_LOSS, name="valid_loss"),
            Alias(signal=STEP_SECONDS, name=_FAIRSEQ_STEP_TIME),
            Alias(signal="epochs", name="update"),
        ),
        finish=_finish_fairseq,
    )
)


# modded-nanogpt and parameter-golf: names and values joined by colons.
#
#     step:12/6200 train_loss:6.6519 train_time:428ms step_avg:213.66ms
#
# The loss is that of one rank. `train_time` is a clock that runs only while the model trains, and
# is set back after the warm-up: the time of a step is the way between two records.

_MODDED_STEP_TIME = "step time (s), from train_time"

_MODDED_FIELD = re.compile(rf"(\w{{1,99}}):({NUMBER})(ms|s)?")
_UNITS = {"ms": 0.001, "s": 1.0}


def _finish_modded(table: Table) -> None:
    """Work the time of each step out of the clock."""
    loss = table.column("train_loss")
    for unit, seconds in _UNITS.items():
        clock = table.column(f"train_time ({unit})")
        rows = np.flatnonzero(loss.present & clock.finite)
        if not len(rows):
            continue
        steps = np.diff(table.column(STEP).values[rows])
        times = np.diff(clock.values[rows])
        known = (steps > 0) & (times > 0)
        column = Column.missing(table.num_rows)
        column.values[rows[1:][known]] = times[known] * seconds / steps[known]
        column.present[rows[1:][known]] = True
        table.replace(_MODDED_STEP_TIME, column)
    _mark_window_means(table, _MODDED_STEP_TIME)


def _modded_fields(rest: str) -> Iterator[tuple[str, str]]:
    for name, value, unit in _MODDED_FIELD.findall(rest):
        yield f"{name} ({unit})" if unit else name, value


MODDED_NANOGPT = text_format(
    Grammar(
        name="modded-nanogpt",
        trainer="modded-nanogpt",
        sign=re.compile(r"step:\d+/\d+ (?:train_loss|val_loss):"),
        lines=(
            TextLine(
                mark="step:",
                pattern=re.compile(r"step:(?P<step>\d+)/\d+ (?=train_loss:|val_loss:)"),
                fields=_modded_fields,
            ),
        ),
        meanings=(
            Alias(signal=LOSS, name="train_loss", remark="of one rank, noisier than the mean"),
            Alias(signal=STEP_SECONDS, name=_MODDED_STEP_TIME, quality=Quality.RAW),
        ),
        finish=_finish_modded,
    )
)


# Corrections


def _window_lengths(table: Table, name: str, step: str = STEP) -> FloatArray:
    """Return, for each row with a value in this column, the steps since the last such row.

    The first row, and the first after the step decreased, get the usual length.
    """
    steps = table.column(step).values[table.column(name).present]
    lengths = np.diff(steps, prepend=np.nan)
    known = lengths > 0  # false for NaN too
    return np.where(known, lengths, np.median(lengths[known]) if known.any() else 1.0)


def _mark_window_means(table: Table, *names: str, step: str = STEP) -> None:
    """Mark columns that hold means over the log interval, if that is longer than a step."""
    for name in names:
        lengths = _window_lengths(table, name, step)
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
