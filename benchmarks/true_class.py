"""The true class of a fault of the lab, from the run and its clean twin alone.

No detector is involved. The measure is the excess, the run's loss minus that of its twin, relative
to sigma, the twin's noise from step to step. A loss below the twin's is not damage.

    the loss left     one step over 5 sigma, or a mean of 10 steps over 1 sigma
    the loss is back  from a step on no such step, and every mean of 10 within half a sigma

    dead       the loss ends non-finite
    divergent  not back and rising, or it stays more than 1 nat above its level before the onset and
               does not fall
    silent     the loss did not leave within 100 steps of the alarm, but another signal did
    recovered  back within 100 steps of leaving
    plateau    not back, and no longer falling while the twin still falls
    lingering  back later, or never

Sources: half a sigma and 1 nat are the figures by which guides and published diagnoses call a loss
recovered or lost; 100 steps is the rule by which the public runs were labelled; 5 sigma within 100
steps is the limit for a move of any signal (`benchmarks/twins.py`).
"""

import math

import numpy as np

from benchmarks.twins import Pair
from trimtab.core import signals
from trimtab.core.block import BoolArray, FloatArray
from trimtab.core.incidents import IncidentClass

_BEFORE = 100
"""Steps before the onset that noise and level are estimated from."""

_MEAN_STEPS = 10
_STEP_SIGMAS, _MEAN_SIGMAS, _BACK_SIGMAS = 5.0, 1.0, 0.5
_MIN_SIGMA = 0.05
"""Lower bound of sigma, in nats."""

_WITHIN = 100
"""Steps after the alarm in which the loss must leave; later changes do not count."""

_FAR = 1.0
_RECOVERY_STEPS = 100
_END_STEPS = 50
"""Length of the last part of a run, and of an earlier part that it is compared with."""


def true_class(pair: Pair, alarm: int | None = None) -> IncidentClass | None:
    """The class of the run; None if no signal ever left the twin.

    Args:
        pair: The run and its twin.
        alarm: The step of the alarm; None is the onset.
    """
    run, twin = pair.values(signals.LOSS)
    after = slice(pair.onset, len(run))
    if not np.isfinite(run[after][-_MEAN_STEPS:]).all():
        return IncidentClass.DEAD
    excess = run[after] - twin[after]
    usual = twin[max(pair.onset - _BEFORE, 0) : pair.onset or _BEFORE]
    # If the two see different data, the excess has the noise of both.
    sigma = max(_noise(usual), _noise(excess), _MIN_SIGMA)
    away = _away(excess, sigma)
    steps_away = np.flatnonzero(away)
    noticed = 0 if alarm is None else alarm - pair.onset
    if not len(steps_away) or steps_away[0] >= noticed + _WITHIN:
        return IncidentClass.SILENT if pair.moves() else None
    if away[-1]:
        return _class_if_still_away(run, twin, pair.onset, sigma)
    lasted = int(steps_away[-1] + 1 - steps_away[0])
    in_time = lasted <= _RECOVERY_STEPS
    return IncidentClass.RECOVERED if in_time else IncidentClass.LINGERING


def _noise(losses: FloatArray) -> float:
    """Noise from step to step, robust against the trend and against single outliers."""
    changes = np.diff(losses[np.isfinite(losses)])
    return float(1.4826 * np.median(np.abs(changes - np.median(changes))) / math.sqrt(2))


def _away(excess: FloatArray, sigma: float) -> BoolArray:
    """The steps at which the loss was away: from the first that left to the last not yet back."""
    means = np.convolve(excess, np.full(_MEAN_STEPS, 1 / _MEAN_STEPS), mode="valid")
    # The mean of the next ten steps; at the end of the run, of the last ten.
    ahead = np.append(means, np.full(len(excess) - len(means), means[-1]))
    jumps = ~(excess <= _STEP_SIGMAS * sigma)
    left = jumps | ~(ahead <= _MEAN_SIGMAS * sigma)
    if not left.any():
        return left
    away = jumps | ~(ahead <= _BACK_SIGMAS * sigma)
    away[: int(np.argmax(left))] = False
    return away


def _class_if_still_away(
    run: FloatArray, twin: FloatArray, onset: int, sigma: float
) -> IncidentClass:
    end, earlier = slice(-_END_STEPS, None), slice(-3 * _END_STEPS, -2 * _END_STEPS)
    clear = 2 * sigma * math.sqrt(2 / _END_STEPS)  # two standard errors between two means
    change = float(run[end].mean() - run[earlier].mean())
    twins = float(twin[end].mean() - twin[earlier].mean())
    before = run[max(onset - _BEFORE, 0) : onset]
    is_far = len(before) > 0 and run[end].mean() > before.mean() + _FAR
    if change > clear or (is_far and change > -clear):
        return IncidentClass.DIVERGENT
    if change > -clear and change - twins > clear:
        return IncidentClass.PLATEAU
    return IncidentClass.LINGERING
