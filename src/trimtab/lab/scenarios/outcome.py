"""Outcome: the class that a fault of the lab truly had, from the run and its clean twin alone.

No detector has a say in it. What counts is the excess, the run's loss less that of its twin,
against sigma, the twin's own noise from step to step. A loss below the twin's is no damage.

    the loss left     one step over 5 sigma, or a mean of 10 steps over 1 sigma
    the loss is back  from a step on no such step, and every mean of 10 within half a sigma

    divergent    the loss ends non-finite; or it did not come back and rises, or stands over 1 nat
                 above where it was before the onset and does not fall
    silent       did not leave within 100 steps of the alarm, while another signal left
    hard batch   left for one step, with a gradient norm under 3 times the usual
    recoverable  back within 100 steps of leaving
    plateau      not back, and no longer falling while the twin still falls
    lingering    back later, or never

Sources: half a sigma and 1 nat are the figures by which guides and published diagnoses call a loss
recovered or lost; one step and 100 steps are the rules by which the public runs were labelled; 5
sigma within 100 steps is what the lab takes for a move of any signal.
"""

import math

import numpy as np

from trimtab.core import signals
from trimtab.core.block import BoolArray, FloatArray
from trimtab.core.incidents import IncidentClass
from trimtab.lab.scenarios.pairing import Pair

_BEFORE = 100
"""Steps before the onset that noise and level are taken from."""

_MEAN_STEPS = 10
_STEP_SIGMAS, _MEAN_SIGMAS, _BACK_SIGMAS = 5.0, 1.0, 0.5
_LEAST = 0.05
"""Nats that sigma is at least, however calm the losses are."""

_WITHIN = 100
"""Steps after the alarm in which the loss has to leave; what it does later is another story."""

_CALM_RATIO = 3.0
"""A batch with a larger gradient norm was more than hard: it may have moved the weights."""

_FAR = 1.0
_RECOVERY_STEPS = 100
_END_STEPS = 50
"""The end of a run, and the stretch before it that tells whether it falls or rises."""


def true_class(pair: Pair, alarm: int | None = None) -> IncidentClass | None:
    """What became of the run; None if nothing in it ever left the twin.

    Args:
        pair: The run and its twin.
        alarm: The step at which somebody noticed; None is the onset itself.
    """
    run, twin = pair.values(signals.LOSS)
    after = slice(pair.onset, len(run))
    if not np.isfinite(run[after][-_MEAN_STEPS:]).all():
        return IncidentClass.DIVERGENT
    excess = run[after] - twin[after]
    usual = twin[max(pair.onset - _BEFORE, 0) : pair.onset or _BEFORE]
    # Where the two see other data, the noise of both is in the excess.
    sigma = max(_noise(usual), _noise(excess), _LEAST)
    away = _away(excess, sigma)
    spell = np.flatnonzero(away)
    noticed = 0 if alarm is None else alarm - pair.onset
    if not len(spell) or spell[0] >= noticed + _WITHIN:
        return IncidentClass.SILENT if pair.moves() else None
    if away[-1]:
        return _of_a_loss_that_stayed_away(run, twin, pair.onset, sigma)
    lasted = int(spell[-1] + 1 - spell[0])
    if lasted == 1 and not pair.peak_ratio(signals.GRAD_NORM) > _CALM_RATIO:
        return IncidentClass.HARD_BATCH
    in_time = lasted <= _RECOVERY_STEPS
    return IncidentClass.RECOVERABLE if in_time else IncidentClass.LINGERING


def _noise(losses: FloatArray) -> float:
    """Noise from step to step, blind to the trend and to single outliers."""
    changes = np.diff(losses[np.isfinite(losses)])
    return float(1.4826 * np.median(np.abs(changes - np.median(changes))) / math.sqrt(2))


def _away(excess: FloatArray, sigma: float) -> BoolArray:
    """At which steps the loss was away: from the first that left to the last that was not back."""
    means = np.convolve(excess, np.full(_MEAN_STEPS, 1 / _MEAN_STEPS), mode="valid")
    # The mean of the steps from here on; at the end of the run, of the last ten.
    ahead = np.append(means, np.full(len(excess) - len(means), means[-1]))
    jumps = ~(excess <= _STEP_SIGMAS * sigma)
    left = jumps | ~(ahead <= _MEAN_SIGMAS * sigma)
    if not left.any():
        return left
    away = jumps | ~(ahead <= _BACK_SIGMAS * sigma)
    away[: int(np.argmax(left))] = False
    return away


def _of_a_loss_that_stayed_away(
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
