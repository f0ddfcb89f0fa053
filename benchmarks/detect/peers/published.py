"""Rules that were published as a sentence, a table or a callback too heavy to install.

Written from their facts. Where the source leaves something open, the choice is said here.
"""

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.detect.contenders import ArrayRule, Rule
from benchmarks.detect.peers.trailing import trailing
from trimtab.core.block import BoolArray, FloatArray

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


def published_rules() -> list[ArrayRule]:
    return [
        ArrayRule(
            name="textbook, loss or norm",
            rule=either(lambda x: _over(x, 100, 3.0)),
            memory=100,
        ),
        # OLMo 2, section 3.2: at least 7 deviations from the mean of the last 1,000.
        ArrayRule(
            name="OLMo 2 spike score 7 sigma / 1000",
            rule=either(lambda x: _away(x, 1000, 7.0)),
            memory=1000,
        ),
        # W&B automations: the defaults of MetricZScoreFilter in wandb 0.31, both directions.
        ArrayRule(name="W&B z-score 3 / 30", rule=lambda loss, _: _away(loss, 30, 3.0), memory=30),
        ArrayRule(
            name="llm-foundry KillLossSpike",
            rule=lambda loss, _: _foundry(loss),
            memory=2 * FOUNDRY_WINDOW + FOUNDRY_ROWS,
        ),
        ArrayRule(name="Megatron-LM 10x", rule=either(_megatron), memory=None),
        ArrayRule(name="ByteRobust 5x", rule=either(_byterobust), memory=BYTEROBUST_WINDOW),
    ]


def either(rule: ValueRule) -> Rule:
    """The same rule on the loss and on the norm; one of them is enough."""

    def on_both(loss: FloatArray, norm: FloatArray | None) -> BoolArray:
        return rule(loss) if norm is None else rule(loss) | rule(norm)

    return on_both


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


def _foundry(loss: FloatArray) -> BoolArray:
    flags = np.zeros(len(loss), dtype=np.bool_)
    if len(loss) <= FOUNDRY_WINDOW:
        return flags
    mean, _ = trailing(loss, FOUNDRY_WINDOW)
    outlier = loss >= FOUNDRY_TIMES * mean
    if len(loss) >= FOUNDRY_ROWS:
        flags[FOUNDRY_ROWS - 1 :] = sliding_window_view(outlier, FOUNDRY_ROWS).all(axis=1)
    high = sliding_window_view(loss > FOUNDRY_CAP, FOUNDRY_WINDOW)[:-1].sum(axis=1)
    too_high = np.zeros(len(loss), dtype=np.bool_)
    too_high[FOUNDRY_WINDOW:] = high >= FOUNDRY_WINDOW / 2
    too_high[: 2 * FOUNDRY_WINDOW] = False
    return flags | too_high
