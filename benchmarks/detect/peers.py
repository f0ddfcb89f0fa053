"""The other detectors of the field, written from what was published or from their code.

Where a source leaves something open, the choice is said here.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.core.block import Block, BoolArray, FloatArray
from trimtab.core.signals import GRAD_NORM, LOSS

Rule = Callable[[FloatArray, FloatArray | None], BoolArray]
"""Losses and norms (none if the run has no norms) in, one flag per value out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRule:
    """A rule over the losses and norms of the records that have a loss."""

    name: str
    rule: Rule
    source: str = "rule"

    def watch(self, run: Block) -> BoolArray:
        loss, norm = run.column(LOSS), run.column(GRAD_NORM)
        rows = np.flatnonzero(loss.present)
        flags = np.zeros(len(run), dtype=np.bool_)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            norms = norm.values[rows] if norm.recorded else None
            flags[rows] = self.rule(loss.values[rows], norms)
        return flags


ValueRule = Callable[[FloatArray], BoolArray]

FOUNDRY_WINDOW, FOUNDRY_TIMES, FOUNDRY_ROWS, FOUNDRY_CAP = 100, 2.0, 5, 10.0
"""llm-foundry, KillLossSpike: 5 losses in a row at or over twice the mean of the 100 before, or
half of the last 100 over a cap of 10 once 200 have passed."""

MEGATRON_TIMES, MEGATRON_ROWS = 10.0, 100
"""Megatron-LM, rerun state machine: 10 times the largest of the first 100. It looks at sums over
micro-batches and buckets; a log has only the step's mean and norm."""

BYTEROBUST_TIMES, BYTEROBUST_WINDOW = 5.0, 100
"""ByteRobust, section 4.1: a fivefold increase of loss or norm. Over what is not said; the mean of
the 100 before is our reading."""

SKIP_WINDOW, SKIP_LEAST, SKIP_SIGMAS = 128, 63, 6.0
"""OLMo-core, SkipStepOptimizer: 6 deviations over the last 128."""

SPIKE_WINDOW, SPIKE_TIMES = 10, 2.0
"""Lightning, SpikeDetection: a loss at three times the mean of the last ten good ones."""

CLIP_ALPHA, CLIP_SIGMAS, CLIP_WARMUP, CLIP_EPSILON = 0.97, 2.5, 25, 1e-6
"""ZClip clips a norm 2.5 deviations over its moving average; that is its alarm."""

_ROWS_AT_ONCE = 2048
"""Windows that are worked on together: 16 MB for a window of 1,000."""


def either(rule: ValueRule) -> Rule:
    """The same rule on the loss and on the norm; one of them is enough."""

    def on_both(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
        return rule(loss) if norm is None else rule(loss) | rule(norm)

    return on_both


def trailing(
    values: FloatArray, window: int, *, least: int | None = None, ddof: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Mean and deviation of up to `window` values before each value.

    NaN where fewer than `least` (the whole window, unless told) came before; a NaN among them
    makes both NaN, as it does in the peers' code.
    """
    mean, deviation = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for row in range(window if least is None else least, min(window, len(values))):
        mean[row], deviation[row] = np.mean(values[:row]), np.std(values[:row], ddof=ddof)
    if len(values) > window:
        windows = sliding_window_view(values, window)[:-1]
        for begin in range(0, len(windows), _ROWS_AT_ONCE):
            part = windows[begin : begin + _ROWS_AT_ONCE]
            rows = slice(window + begin, window + begin + len(part))
            mean[rows] = part.mean(axis=1)
            deviation[rows] = part.std(axis=1, ddof=ddof)
    return mean, deviation


def _over(values: FloatArray, window: int, sigmas: float) -> BoolArray:
    mean, deviation = trailing(values, window)
    over: BoolArray = values > mean + sigmas * deviation
    return over


def _away(values: FloatArray, window: int, sigmas: float) -> BoolArray:
    mean, deviation = trailing(values, window)
    away: BoolArray = np.abs(values - mean) > sigmas * deviation
    return away


def _byterobust(values: FloatArray) -> BoolArray:
    mean, _ = trailing(values, BYTEROBUST_WINDOW)
    jumped: BoolArray = values >= BYTEROBUST_TIMES * mean
    return jumped | ~np.isfinite(values)


def _megatron(values: FloatArray) -> BoolArray:
    if len(values) <= MEGATRON_ROWS:
        return ~np.isfinite(values)
    large: BoolArray = np.abs(values) >= MEGATRON_TIMES * np.nanmax(np.abs(values[:MEGATRON_ROWS]))
    large[:MEGATRON_ROWS] = False
    return large | ~np.isfinite(values)


def _foundry(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
    flags = np.zeros(len(loss), dtype=np.bool_)
    if len(loss) <= FOUNDRY_WINDOW:
        return flags
    mean, _ = trailing(loss, FOUNDRY_WINDOW)
    outlier = loss >= FOUNDRY_TIMES * mean
    flags[FOUNDRY_ROWS - 1 :] = sliding_window_view(outlier, FOUNDRY_ROWS).all(axis=1)
    high = sliding_window_view(loss > FOUNDRY_CAP, FOUNDRY_WINDOW)[:-1].sum(axis=1)
    too_high = np.zeros(len(loss), dtype=np.bool_)
    too_high[FOUNDRY_WINDOW:] = high >= FOUNDRY_WINDOW / 2
    too_high[: 2 * FOUNDRY_WINDOW] = False
    return flags | too_high


def _olmo_core(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
    skips = np.zeros(len(loss), dtype=np.bool_)
    for values in (loss,) if norm is None else (loss, norm):
        mean, deviation = trailing(values, SKIP_WINDOW, least=SKIP_LEAST, ddof=1)
        # A NaN in the window keeps nothing: every comparison with it is false.
        skips |= ~(values - mean <= SKIP_SIGMAS * deviation)
    skips[:SKIP_LEAST] = False
    return skips


def _lightning(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
    good: deque[float] = deque(maxlen=SPIKE_WINDOW)
    flags, last = np.zeros(len(loss), dtype=np.bool_), 0.0
    for row, value in enumerate(loss.tolist()):
        mean = sum(good) / len(good) if good else value
        is_far = value > last and abs(value - mean) >= abs(SPIKE_TIMES * mean)
        flags[row] = bool(good) and (is_far or not math.isfinite(value))
        if not flags[row]:
            good.append(value)
            last = value
    return flags


def _zclip(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
    flags = np.zeros(len(loss), dtype=np.bool_)
    if norm is None or len(norm) <= CLIP_WARMUP:
        return flags
    first = norm[:CLIP_WARMUP].tolist()
    mean = sum(first) / CLIP_WARMUP
    variance = sum((value - mean) ** 2 for value in first) / CLIP_WARMUP
    for row, value in enumerate(norm.tolist()[CLIP_WARMUP:], CLIP_WARMUP):
        deviation = math.sqrt(variance)
        z = (value - mean) / (deviation + CLIP_EPSILON)
        flags[row] = z > CLIP_SIGMAS
        fed = mean + CLIP_SIGMAS * deviation / (z / CLIP_SIGMAS) if flags[row] else value
        mean = CLIP_ALPHA * mean + (1 - CLIP_ALPHA) * fed
        variance = CLIP_ALPHA * variance + (1 - CLIP_ALPHA) * (fed - mean) ** 2
    return flags


SKIP, ZSCORE = "OLMo-core SkipStep 6 sigma / 128", "W&B z-score 3 / 30"
OLMO_SCORE = "OLMo 2 spike score 7 sigma / 1000"

PEERS = tuple(
    ArrayRule(name=name, rule=rule)
    for name, rule in (
        ("textbook, loss or norm", either(lambda x: _over(x, 100, 3.0))),
        # OLMo 2, section 3.2: at least 7 deviations from the mean of the last 1,000.
        (OLMO_SCORE, either(lambda x: _away(x, 1000, 7.0))),
        # W&B automations: the defaults of MetricZScoreFilter in wandb 0.31, both directions.
        (ZSCORE, lambda loss, _: _away(loss, 30, 3.0)),
        ("llm-foundry KillLossSpike", _foundry),
        ("Megatron-LM 10x", either(_megatron)),
        ("ByteRobust 5x", either(_byterobust)),
        (SKIP, _olmo_core),
        ("Lightning SpikeDetection", _lightning),
        ("ZClip trigger", _zclip),
    )
)
