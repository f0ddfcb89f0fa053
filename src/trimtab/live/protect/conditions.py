"""Conditions: the tests of the rule as numbers, from the settings.

A test acts if none of its conditions is negative. A condition is a sum: inputs times weights, plus
scales of the baseline times weights, plus a constant. One of them also divides by the size of the
loss.
"""

import math
from dataclasses import dataclass, field

from trimtab.core.config import GateConfig
from trimtab.live.protect.budget import ACCIDENT, EXCESS, EXTREME, LET_THROUGH, ODD

LOSS, LOG_NORM, FIRST_COUNTER = range(3)
"""The inputs; the counters of the budget are the last five."""
NUM_INPUTS = 7

_USUAL_LOSS, _USUAL_LOG_NORM, _SIGMA_LOSS, _SIGMA_NORM, _SIZE = range(5)
"""The scales of the baseline."""
NUM_SCALES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A sum that must not be negative."""

    inputs: dict[int, float] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    constant: float = 0.0
    explained: float = 0.0
    """Subtracted this many times: the loss above the usual, as a share of its size."""

    def input_weights(self) -> list[float]:
        """The weight of each input."""
        return [self.inputs.get(place, 0.0) for place in range(NUM_INPUTS)]

    def scale_weights(self) -> list[float]:
        """The weight of each scale."""
        return [self.scales.get(place, 0.0) for place in range(NUM_SCALES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """Conditions that must all hold, and the steps that must be known before."""

    conditions: tuple[Condition, ...]
    min_history: int


def make_tests(config: GateConfig) -> list[Test]:
    """The tests in the order of the budget's counters, all with the same number of conditions."""
    norm_is_high = (
        _norm_over_sigmas(config.norm_sigmas),
        _norm_over_ratio(config.norm_ratio),
        _norm_not_explained(config.norm_explained_by_loss),
    )
    row = _counter_at_most(ODD, config.max_consecutive_discards - 1)
    loss_is_high = (_loss_over_sigmas(config.loss_sigmas), _loss_over_share(config.loss_excess))
    both_are_high = (
        *loss_is_high,
        _norm_over_sigmas(config.loss_sigmas),
        _norm_over_ratio(config.odd_norm_ratio),
    )
    tests = {
        ODD: both_are_high,
        EXCESS: (*norm_is_high, row, _counter_at_most(EXCESS, config.max_scaled - 1)),
        EXTREME: (
            _norm_over_sigmas(config.norm_sigmas),
            _norm_over_ratio(config.extreme_norm_ratio),
            row,
            _counter_at_most(EXTREME, config.max_extreme_scaled - 1),
        ),
        ACCIDENT: (
            *loss_is_high,
            *norm_is_high,
            row,
            _counter_at_most(ACCIDENT, config.max_discards - 1),
        ),
        LET_THROUGH: (*both_are_high, _counter_at_least(ODD, config.max_consecutive_discards)),
    }
    longest = max(map(len, tests.values()))
    return [
        Test(
            conditions=conditions + (Condition(),) * (longest - len(conditions)),
            min_history=config.min_history_extreme if test == EXTREME else config.min_history,
        )
        for test, conditions in sorted(tests.items())
    ]


def _loss_over_sigmas(sigmas: float) -> Condition:
    return Condition(inputs={LOSS: 1.0}, scales={_USUAL_LOSS: -1.0, _SIGMA_LOSS: -sigmas})


def _loss_over_share(share: float) -> Condition:
    return Condition(inputs={LOSS: 1.0}, scales={_USUAL_LOSS: -1.0, _SIZE: -share})


def _norm_over_sigmas(sigmas: float) -> Condition:
    return Condition(inputs={LOG_NORM: 1.0}, scales={_USUAL_LOG_NORM: -1.0, _SIGMA_NORM: -sigmas})


def _norm_over_ratio(ratio: float) -> Condition:
    scales = {_USUAL_LOG_NORM: -1.0}
    return Condition(inputs={LOG_NORM: 1.0}, scales=scales, constant=-math.log(ratio))


def _norm_not_explained(share: float) -> Condition:
    return Condition(inputs={LOG_NORM: 1.0}, scales={_USUAL_LOG_NORM: -1.0}, explained=share)


def _counter_at_most(test: int, count: float) -> Condition:
    return Condition(inputs={FIRST_COUNTER + test: -1.0}, constant=count)


def _counter_at_least(test: int, count: float) -> Condition:
    return Condition(inputs={FIRST_COUNTER + test: 1.0}, constant=-count)
