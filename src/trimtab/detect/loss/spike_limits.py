"""The limits of the eleven tests for a loss spike, by how often a run logs."""

import dataclasses
import math
from dataclasses import dataclass

from trimtab.detect.tools.score_history import Bounds

LENGTHS = (1, 2, 4, 8, 16, 32, 1, 2, 4, 1, 2)
"""Records that each test adds up."""
ROOTS = tuple(math.sqrt(length) for length in LENGTHS)
SUMS, JOINT_SUMS, NEAR_SUMS = 5, 2, 1
JOINT, NEAR = 6, 9
"""The first of the tests that use loss and norm together, and of those that use the neighbours."""

MIN_RISE = (0.02,) + (0.012,) * SUMS + (0.006,) * (1 + JOINT_SUMS) + (0.02, 0.012)
"""Rise of the loss, as a share of it, under which nothing is a spike. Source: 0 to 1.2 % are equal
on public runs; less is not worth an alarm."""


THIN_STRIDE = 50.0
"""Steps between two records from which a single loss is evidence enough."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of each test's threshold."""

    bounds: tuple[Bounds, ...]

    @property
    def lows(self) -> tuple[float, ...]:
        """The score of each test under which nothing needs a closer look."""
        return tuple(bound.low for bound in self.bounds)

    def times(self, threshold_scale: float) -> "Limits":
        """The same limits with thresholds this many times higher."""
        return Limits(tuple(bound.times(threshold_scale) for bound in self.bounds))


_NEVER = Bounds(prior=math.inf, low=math.inf, cap=math.inf, rank=1)
_SUMS = Bounds(prior=6.0, low=6.0, cap=9.0, rank=3)


def _limits(*, single: Bounds, sums: Bounds, joint: float, near: tuple[Bounds, Bounds]) -> Limits:
    joint_sums = Bounds(prior=5.5, low=5.5, cap=8.25, rank=sums.rank)
    joint_single = Bounds(prior=joint, low=joint, cap=1.5 * joint, rank=sums.rank)
    return Limits((single, *[sums] * SUMS, joint_single, *[joint_sums] * JOINT_SUMS, *near))


def _with_levels(limits: Limits, tests: tuple[int, ...], max_level: float) -> Limits:
    """The same limits, with tests that must also exceed the return level of the run."""
    return Limits(
        tuple(
            dataclasses.replace(bound, max_level=max_level if test in tests else 0.0)
            for test, bound in enumerate(limits.bounds)
        )
    )


EVERY_STEP = _limits(
    single=Bounds(prior=30.0, low=30.0, cap=60.0, rank=2, factor=0.33, power=2),
    sums=Bounds(prior=6.5, low=6.5, cap=9.75, rank=2),
    joint=10.0,
    near=(
        Bounds(prior=30.0, low=7.0, cap=60.0, rank=2, factor=0.33, power=2, min_entries=32),
        Bounds(prior=12.0, low=6.5, cap=12.0, rank=2, factor=0.28, power=2, min_entries=32),
    ),
)
"""In healthy every-step runs one loss reaches 29 scales (the local loss of rank 0) and loss and
norm together 6.8: single records say little. Their sums stay under 6 and 5. Against its neighbours
one loss reaches 28 in wild runs and 7.4 in calm ones, where the highest so far is 10 to 12 and 4 to
5; hence the square. Factors of 0.30 and 0.26 raise six false alarms where these raise none; floors
of 6.5 and 6 find no more. It takes 1,024 records to know how wild a run is: after 512 a wild one
still passed for calm."""

EVERY_FEW_STEPS = _with_levels(
    _limits(
        single=Bounds(prior=12.0, low=12.0, cap=36.0, rank=2),
        sums=_SUMS,
        joint=6.0,
        near=(_NEVER, _NEVER),
    ),
    tests=(0,),
    max_level=36.0,
)
"""Every 2 to 49 steps: single high records are mostly batches (healthy every-step runs, thinned out
to every 10 and 30 steps, reach 25), but a spike may have no more than one."""

THINNED = _with_levels(
    _limits(
        single=Bounds(prior=7.0, low=5.0, cap=10.0, rank=3),
        sums=_SUMS,
        joint=5.25,
        near=(
            Bounds(prior=12.0, low=7.0, cap=60.0, rank=2, factor=0.33, power=2),
            Bounds(prior=12.0, low=6.5, cap=60.0, rank=2, factor=0.28, power=2),
        ),
    ),
    tests=(0, 1, NEAR),
    max_level=12.0,
)
"""In healthy thinned logs one loss stays under 4 scales (except for a bimodal loss), loss and norm
together under 3.2; in healthy every-step runs that were thinned out, 7.2: a joint limit of 3.5
found no more. A run of many spikes would raise its own thresholds: hence the third highest and a
low cap, which cost nothing; a cap of 8 raises the first false alarm. The tests against neighbours
find a spike within 40 records of another, which the window of 40 hides: of 50 planted pairs 48
instead of 26, with the same false alarms. All of this was measured on the tuning runs.

A run whose records scatter widely makes single high records by itself: they must also exceed its
return level, as far as that is under 12 scales (chosen; 10 to 15 are equal). Measured over tuning
runs as they are and thinned out: 0.65 instead of 1.31 false alarms per 10,000 records in the quiet
parts of eventful runs, 3.5 instead of 4.5 in thinned healthy ones, with the same events found. Loss
and norm together are two witnesses and need no such level: it would save one false alarm in 130,000
records. With the sum of two of EVERY_FEW_STEPS, three labelled spikes are lost; with the pair of
neighbours, one."""


def limits_at(stride: float) -> Limits:
    """The limits for a log with this many steps from record to record."""
    if stride >= THIN_STRIDE:
        return THINNED
    return EVERY_STEP if stride < 2 else EVERY_FEW_STEPS
