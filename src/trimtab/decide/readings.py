"""Reading: what a probe says, measured against the healthy readings of the same run.

A reading is a mean difference of losses on the same batches, so the noise between batches cancels.
What is left depends on the model: one that memorises more reads lower. So the scale is the run's.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.decide.situation import Situation

HEALTHY_SIGMAS = 3.0
"""A reading within this many deviations of the healthy ones says nothing. With one reading every
50 steps that is one false sign in 37,000 steps."""

SUSPICIOUS_SIGMAS = 2.0
"""A reading of the canary beyond this is taken again with more batches. One healthy reading in 44
is, at the price of a probe: 0.2 % of the time."""

FORGOTTEN = 1 / 3
"""A canary is believed without an alarm only if this much or less is left of the usual reading.
Source: healthy readings fell to half of the usual one between two canaries while the learning rate
fell; with garbage data to a quarter, and then above 0."""

GROSS_SIGMAS = 15.0
"""Beyond this the weights are broken: no batch that the gate let through does that. Source: broken
weights read +1.2 to +2.1 where healthy readings differ by 0.03, 48 steps of garbage +0.79."""

MIN_SIGMA = 0.01
"""Floor of the deviation, in nats. Source: leaving out one batch moves the final loss by 0.004."""

DEFAULT_MEAN, DEFAULT_SIGMA = 0.0, 0.05
"""Of the healthy readings, while there are fewer than three. Source: healthy readings of the lab
lie between -0.26 and -0.03; 0 is cautious."""

MIN_READINGS, NUM_READINGS, NUM_EXPECTED = 3, 12, 3
"""Healthy readings that a scale needs, that it looks back on, and that the expectation is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value and the scale to read it on."""

    value: float
    mean: float
    sigma: float

    @property
    def is_healthy(self) -> bool:
        """Whether it shows no harm. NaN is not healthy, hence the form of the comparison."""
        return self.value <= self.mean + HEALTHY_SIGMAS * self.sigma

    @property
    def is_suspicious(self) -> bool:
        """Whether it is worth a second reading; NaN is."""
        return not self.value <= self.mean + SUSPICIOUS_SIGMAS * self.sigma

    @property
    def shows_forgetting(self) -> bool:
        """Whether most of what was learnt on these batches since is gone; NaN is."""
        return not (self.is_healthy or self.value <= FORGOTTEN * self.mean)

    @property
    def is_gross(self) -> bool:
        """Whether it shows weights that are broken rather than hurt; NaN does."""
        return not self.value <= self.mean + GROSS_SIGMAS * self.sigma

    @property
    def excess(self) -> float:
        """The harm in nats: 0 if healthy, inf if not finite."""
        if self.is_healthy:
            return 0.0
        return self.value - self.mean if math.isfinite(self.value) else math.inf


def scale_of(healthy: Sequence[float], num_steps: int) -> tuple[float, float]:
    """Expected reading and its deviation, from the latest healthy ones of one step each.

    Readings rise towards 0 as the loss flattens and the learning rate falls, so the expectation is
    that of the last few with as much of a rise as before, and the deviation comes from differences
    of neighbours. A reading of several steps is the mean of that many.
    """
    known = [value for value in healthy if math.isfinite(value)][-NUM_READINGS:]
    if len(known) < MIN_READINGS:
        return DEFAULT_MEAN, DEFAULT_SIGMA
    latest = known[-NUM_EXPECTED:]
    squares = [(b - a) ** 2 / 2 for a, b in itertools.pairwise(known)]
    # A few readings may lie close together by chance.
    squares += [DEFAULT_SIGMA**2] * MIN_READINGS
    sigma = math.sqrt(statistics.fmean(squares) * (1 / num_steps + 1 / len(latest)))
    expected = statistics.fmean(latest)
    earlier = known[-2 * NUM_EXPECTED : -NUM_EXPECTED]
    rise = expected - statistics.fmean(earlier) if earlier else 0.0
    return expected + max(rise, 0.0), max(sigma, MIN_SIGMA)


def reading_of(situation: Situation) -> Reading | None:
    """Return the probe's reading; without a probe, the loss itself; None if nothing was read."""
    if situation.probe is not None:
        mean, sigma = scale_of(situation.healthy, situation.probe_steps)
        return Reading(value=situation.probe, mean=mean, sigma=sigma)
    if situation.rise is not None:
        return Reading(value=situation.rise, mean=0.0, sigma=MIN_SIGMA)
    if situation.can_probe or situation.loss_excess is None or situation.loss_noise is None:
        return None
    return Reading(
        value=situation.loss_excess, mean=0.0, sigma=max(situation.loss_noise, MIN_SIGMA)
    )


CANARY_STEPS = 2
"""Steps whose batches are probed: one that was probed before, and a new one."""

_FORWARD_SHARE = 0.42
"""Of a step. Source: measured at 10M parameters; 0.34 at 50M (`scripts/bench recover.cost`)."""

YOUNG_BOUNDARIES, YOUNG_FACTOR = 1000, 3.52
"""Chosen: with 52 steps between readings, what begins right after one shows within 64."""

CANARY_SHARE = 0.0046
"""Share of the training time that probes of a healthy run may take; 3.5 times that in the first
1,000 steps. Chosen: with less, batches of the last reading are older than the oldest snapshot."""


def canary_every(share: float, boundary: int) -> int | None:
    """Steps between two readings at a boundary of the run; None if there is no time for any."""
    if share <= 0:
        return None
    if boundary <= YOUNG_BOUNDARIES:
        share *= YOUNG_FACTOR
    return math.ceil(CANARY_STEPS * _FORWARD_SHARE / share)


WATCH_READINGS, WATCH_EVERY = 4, 16
"""Readings after a data source has come that is new to the run, and the steps between them. Chosen:
they cover 64 steps, and the second one is compared with weights that had hardly seen the source."""


def watch_pause(share: float) -> int | None:
    """Steps between two such series, so that they cost as much as the canary itself at most; None
    if there is no time for any."""
    if share <= 0:
        return None
    return math.ceil(WATCH_READINGS * CANARY_STEPS * _FORWARD_SHARE / share)
