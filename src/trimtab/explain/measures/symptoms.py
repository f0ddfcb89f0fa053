"""Symptoms: an incident in numbers, before any explanation."""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import NO_POSITION, FloatArray
from trimtab.core.signals import GRAD_NORM, LOSS, LR, TOKEN_RARITY, UNIQUE_TOKEN_SHARE
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.signal_view import deviation

EMA_RECORDS = 50
"""The loss before the onset is an exponential average over 50 records. Source: the post-mortem
template of the textbook."""

OUTLIER_DEVIATIONS = 8.0
"""Values this far above the median do not count: they belong to an incident before this one.
Chosen: far beyond what noise reaches in 50 records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """The numbers of an incident; None is "not recorded"."""

    loss_before: float | None
    """Exponential average over the 50 records before the onset, without outliers."""
    loss_peak: float | None
    loss_after_50: float | None
    """50 records after the peak."""
    loss_after_500: float | None
    grad_norm_before: float | None
    grad_norm_peak: float | None
    lr: float | None
    dtype: str | None
    data_position: int | None
    token_rarity: float | None
    unique_token_share: float | None
    """Of the batch at the onset."""


def measure(context: IncidentContext) -> Symptoms:
    """The numbers of an incident."""
    norms = context.before(GRAD_NORM, EMA_RECORDS)
    position = NO_POSITION
    if context.has_onset:
        position = int(context.block.data_position[context.onset_row])
    return Symptoms(
        loss_before=_average(context.before(LOSS, 4 * EMA_RECORDS)),
        loss_peak=context.incident.peak.loss,
        loss_after_50=context.loss_after(50),
        loss_after_500=context.loss_after(500),
        grad_norm_before=_average(norms),
        grad_norm_peak=context.worst(GRAD_NORM),
        lr=context.at_onset(LR),
        dtype=context.facts.dtype,
        data_position=None if position == NO_POSITION else position,
        token_rarity=context.at_onset(TOKEN_RARITY),
        unique_token_share=context.at_onset(UNIQUE_TOKEN_SHARE),
    )


def _average(values: FloatArray) -> float | None:
    """The exponential average at the last of these values."""
    if not len(values):
        return None
    newest = values[-EMA_RECORDS:]
    limit = np.median(newest) + OUTLIER_DEVIATIONS * deviation(newest)
    kept = values[values <= limit]
    average = float(kept[0])
    for value in kept[1:]:
        average += (float(value) - average) * 2 / (EMA_RECORDS + 1)
    return average if math.isfinite(average) else None
