"""Cost: what an incident took in steps, time and tokens."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.signals import STEP_SECONDS, TOKENS_PER_SECOND
from trimtab.explain.context import IncidentContext
from trimtab.explain.measures.discards import Discards, compute_discards


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an incident took from its onset to its end; None is "not recorded"."""

    steps: int
    seconds: float | None
    tokens: float | None
    discarded: Discards | None
    """The steps that never reached the weights; None if the run was not protected."""


def compute_cost(context: IncidentContext) -> Cost:
    """The cost of an incident, by the step time and throughput around it."""
    incident = context.incident
    steps = max(incident.last.step - incident.onset.step, 0) + 1
    step_seconds = _typical(context, STEP_SECONDS)
    tokens_per_second = _typical(context, TOKENS_PER_SECOND)
    seconds = tokens = None
    if step_seconds is not None:
        seconds = steps * step_seconds
        if tokens_per_second is not None:
            tokens = seconds * tokens_per_second
    discarded = compute_discards(context.block[context.onset_row : context.last_row + 1])
    return Cost(steps=steps, seconds=seconds, tokens=tokens, discarded=discarded)


def _typical(context: IncidentContext, signal: str) -> float | None:
    """The median around the incident: a few stalled steps must not set the price of all others."""
    column = context.block.column(signal)
    values = column.values[column.finite]
    return float(np.median(values)) if len(values) else None
