"""PassSchedule: which updates are measured, how much of each, and over how many steps.

    telemetry_every set   every so many updates, everything, in one step
    telemetry_every 0     the first update; then every tenth where that costs less than SHARE of
                          the time, else as often as SHARE allows; what takes longer than a tenth
                          of a step is spread over several

All ranks must measure the same updates, so the first one chooses. Its choice travels as a `Plan`
with the sums of a measurement, and every rank adopts it when they arrive, at the same exchange.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trimtab.live.measure.time_budget import StepClock, Stopwatch, TimeBudget

SHARE = 0.005
"""The share of the time of training that telemetry may cost. Chosen: less than runs differ by."""

GRID = 10
"""Measured updates are multiples of it. Source: stability guides log every 10 steps."""

MOST_UPDATES = 10_000
"""Updates from one pass to the next at most. Chosen: a pass that was disturbed, by a pause of the
machine, must not end telemetry."""

MOST_SLICES = 64
"""Steps that a pass takes at most: the records of these steps wait for it."""

LEAST_SLICE_SECONDS = 0.001
"""A slice is no shorter. Chosen: a step that a millisecond lengthens by a tenth is one of a toy."""

WHOLE_EVERY = 10
"""Passes from one with everything to the next, where not every one can afford it."""

RECENT_PASSES = 3
"""Passes whose least cost counts: the first one allocates, others are disturbed."""

PLANNING_UPDATE = 5
"""After this update the time of a step is known, and the ranks agree on the next pass."""

NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When and how the next pass is made."""

    updates: int
    """Updates from the beginning of this pass to that of the next; 0 if it is not known."""
    slices: int
    """Steps over which the next pass is spread; 0 if only a plan is sent with it."""
    is_whole: bool
    """Whether it has checksums and the sums that are rarely looked at."""

    @classmethod
    def from_values(cls, values: Sequence[float]) -> "Plan":
        updates, slices, is_whole = values
        return cls(updates=round(updates), slices=round(slices), is_whole=bool(is_whole))

    @property
    def values(self) -> tuple[float, float, float]:
        """As numbers in the order of PLAN."""
        return float(self.updates), float(self.slices), float(self.is_whole)


PLAN = ("plan:updates", "plan:slices", "plan:is_whole")
"""Slots of the first rank's plan; the others leave zero."""

UNKNOWN_PLAN = Plan(updates=0, slices=0, is_whole=False)


@dataclass(slots=True)
class PassCost:
    """What a pass has cost."""

    hook_seconds: float
    """Time in forward hooks; on an accelerator that of the host, which hands them over."""
    watches: list[Stopwatch] = field(default_factory=list)
    """One for each slice; on an accelerator they know their time some steps later."""

    @property
    def seconds(self) -> float:
        return self.hook_seconds + sum(watch.seconds for watch in self.watches)


class PassSchedule:
    """Says which updates are measured, the same on all ranks."""

    def __init__(self, every: int, clock: StepClock) -> None:
        self._every = every
        """What the user has set; 0 leaves it to the budget."""
        self._budget = TimeBudget(clock, SHARE)
        self._whole: deque[PassCost] = deque(maxlen=RECENT_PASSES)
        self._others: deque[PassCost] = deque(maxlen=RECENT_PASSES)
        self._plan = Plan(updates=GRID, slices=1, is_whole=True)
        self._next, self._began, self._num_begun = 0, 0, 0

    def is_due(self, update: int) -> bool:
        """Whether something is sent of this update, if only a plan."""
        return update == self._next

    def is_measured(self, update: int) -> bool:
        """Whether a pass begins with this update."""
        return update == self._next and self._plan.slices > 0

    def begin(self, update: int) -> Plan:
        """Return how this update is measured; when the next one is, `adopt` says."""
        plan = self._plan
        self._began = update if plan.slices else self._began
        self._num_begun += 1
        if self._every:
            self._next = update + self._every
        elif self._num_begun == 1:
            self._next, self._plan = PLANNING_UPDATE, replace(UNKNOWN_PLAN, updates=GRID)
        else:
            self._next = NEVER
        return plan

    def end(self, plan: Plan, cost: PassCost) -> None:
        (self._whole if plan.is_whole else self._others).append(cost)

    def propose(self, *, most_slices: int) -> Plan:
        """Return the plan of the first rank, whose pass has so many slices at most."""
        if not self._whole or math.isnan(self._budget.seconds_per_step):
            return UNKNOWN_PLAN
        whole = _least(self._whole)
        others = _least(self._others or self._whole)
        steps = self._budget.steps_between(whole)
        is_cheap = steps <= GRID
        if not is_cheap:
            mean = ((WHOLE_EVERY - 1) * others + whole) / WHOLE_EVERY
            steps = self._budget.steps_between(mean)
        # The second to begin was no pass.
        is_whole = is_cheap or (self._num_begun - 1) % WHOLE_EVERY == 0
        longest = max(self._budget.longest_seconds, LEAST_SLICE_SECONDS)
        # By the dearest: one step that is too long is noticed, a pass in more slices is not.
        costs = self._whole if is_whole else self._others or self._whole
        slices = math.ceil(max(cost.seconds for cost in costs) / longest)
        return Plan(
            updates=_on_grid(min(steps, MOST_UPDATES)),
            # The first of several has the gradients alone, and what else must be of one step.
            slices=1 if slices <= 1 else min(slices + 1, most_slices, MOST_SLICES),
            is_whole=is_whole,
        )

    def adopt(self, plan: Plan, update: int) -> None:
        """Take the plan that has arrived before this update; the last one if it has none."""
        if self._next != NEVER:
            return
        if not plan.updates:
            plan = replace(self._plan, slices=max(self._plan.slices, 1))
        self._plan = plan
        self._next = _on_grid(max(self._began + plan.updates, update + 1))

    def restart(self, update: int) -> None:
        """Measure soon: what was on its way before this update has been lost."""
        self.adopt(UNKNOWN_PLAN, update)


def _least(costs: "deque[PassCost]") -> float:
    return min(cost.seconds for cost in costs)


def _on_grid(update: float) -> int:
    return max(math.ceil(update / GRID), 1) * GRID
