"""RunHistory: where each attempt of a run began, and when its weights were not finite.

A checkpoint belongs to a line of attempts: what happened in an attempt that was given up before it
does not concern it, and steps after a return to an older state say nothing about it.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from trimtab.core.block import Block
from trimtab.core.signals import ADAM_M_NORM, ADAM_V_NORM, PARAM_NORM

STATE_NORMS = (PARAM_NORM, ADAM_M_NORM, ADAM_V_NORM)
"""Norms of what a checkpoint holds: one that is not finite means that it holds such a value."""

_PART_RECORDS = 65536
"""Records at a time: the norms of a long run do not fit into memory together."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Consecutive records without a return to an earlier step."""

    first_tick: int
    first_step: int
    last_step: int
    nonfinite: list[tuple[int, int | None]] = field(default_factory=list)
    """Steps from which on the norms were not finite, and at which they were finite again."""

    def is_finite_after(self, step: int) -> bool:
        """Whether the state after this step is finite, as far as its norms were recorded."""
        return not any(
            first <= step and (last is None or step < last) for first, last in self.nonfinite
        )


class RunHistory:
    """The attempts of a run, from its records in order."""

    def __init__(self) -> None:
        self.attempts: dict[int, Attempt] = {}
        """By the number of the attempt, in order."""

    def update(self, block: Block) -> None:
        """Add the next records; how a run is cut never changes the result."""
        for part in block.cut(_PART_RECORDS):
            starts = np.flatnonzero(np.diff(part.attempt)) + 1
            for first, end in pairwise([0, *starts.tolist(), len(part)]):
                if first < end:
                    self._update_attempt(part[first:end])

    def __len__(self) -> int:
        return len(self.attempts)

    def attempt_at(self, tick: int) -> int:
        """The attempt that a record belongs to; the first if it is older than all of them."""
        numbers = [n for n, attempt in self.attempts.items() if attempt.first_tick <= tick]
        return numbers[-1] if numbers else next(iter(self.attempts), 0)

    def leads(self, number: int, step: int, later: int) -> bool:
        """Whether attempt `later` goes on from what attempt `number` had at `step`.

        It does if none of the attempts between them began before that step.
        """
        return later >= number and all(
            attempt.first_step >= step
            for other, attempt in self.attempts.items()
            if number < other <= later
        )

    def went_back_before(self, number: int, step: int) -> int | None:
        """The step to which the run went back from attempt `number`, if before `step`."""
        firsts = [a.first_step for other, a in self.attempts.items() if other > number]
        return min((first for first in firsts if first < step), default=None)

    def _update_attempt(self, block: Block) -> None:
        number = int(block.attempt[0])
        last_step = int(block.step[-1])
        attempt = self.attempts.get(number)
        if attempt is None:
            attempt = self.attempts[number] = Attempt(
                first_tick=int(block.tick[0]), first_step=int(block.step[0]), last_step=last_step
            )
        attempt.last_step = max(attempt.last_step, last_step)
        columns = [block.columns[name] for name in STATE_NORMS if name in block.columns]
        if not columns:
            return
        seen = np.logical_or.reduce([column.present for column in columns])
        bad = np.logical_or.reduce([column.nonfinite for column in columns])
        if not bad.any() and not attempt.nonfinite:
            return
        for row in np.flatnonzero(seen).tolist():
            is_open = bool(attempt.nonfinite) and attempt.nonfinite[-1][1] is None
            if bad[row] and not is_open:
                attempt.nonfinite.append((int(block.step[row]), None))
            elif is_open and not bad[row]:
                attempt.nonfinite[-1] = (attempt.nonfinite[-1][0], int(block.step[row]))
