"""half: which sequences of the step make it odd, by bisection.

All sequences but some are replaced by those of a healthy step. The loss is a mean over sequences,
so what the others add cancels. A half that is not odd is left alone; the other is halved again.

Answers:
    "sequences"   `facts["rows"]` has data position, rank and row of each
    "none"        the step is not odd because of its sequences
"""

import math
from collections.abc import Generator

from trimtab.probes.batch_or_state import ODD_SIGMAS, Scale
from trimtab.probes.passes import (
    Answer,
    Experiment,
    Pass,
    Question,
    Result,
    Rows,
    StepResult,
    is_finite,
    open_answer,
)

Row = tuple[int, int, int]
"""Rank, micro-batch and row."""

MAX_ROWS = 24
"""Offending sequences that are looked for; more than that is "nearly all"."""


def half(question: Question) -> Experiment:
    """Bisect over micro-batches and sequences."""
    step = question.step
    healthy = [one for one in question.healthy() if not one.discarded]
    scale = Scale.of(question)
    if scale is None or not healthy:
        return open_answer(question, "there is no healthy step to take sequences from")
    others = question.positions(healthy[-1].step)
    first = yield _pass(step, (), others)
    if first.last is None:
        return open_answer(question, "the step was not done again")
    micro, rows = first.num_rows
    if rows < 2:
        return open_answer(question, "its batches have no sequences that could be exchanged")
    all_rows = [
        (rank, at, row)
        for rank in range(question.world)
        for at in range(micro)
        for row in range(rows)
    ]
    search = _Search(question, scale, others, first.last, len(all_rows))
    found = yield from search.bisect(all_rows)
    if not found:
        return Answer(
            experiment=question.experiment,
            says="none",
            sentence=f"no sequence of step {step} makes it odd by itself",
        )
    positions = question.positions(step)
    named = [[positions[at], rank, row] for rank, at, row in found]
    shown = ", ".join(f"row {row} of batch {position}" for position, _, row in named[:6])
    return Answer(
        experiment=question.experiment,
        says="sequences",
        sentence=f"{len(named)} of {len(all_rows)} sequences make step {step} odd: {shown}"
        + (", ..." if len(named) > 6 else ""),
        facts={"rows": named, "of": len(all_rows)},
    )


class _Search:
    def __init__(
        self,
        question: Question,
        scale: Scale,
        others: tuple[int, ...],
        without: StepResult,
        total: int,
    ) -> None:
        self._question = question
        self._scale = scale
        self._others = others
        self._without = without
        self._total = total

    def bisect(self, rows: list[Row]) -> Generator[Pass, Result, list[Row]]:
        """The rows of this list that make the step odd."""
        kept = (yield _pass(self._question.step, tuple(rows), self._others)).last
        if kept is None or not self._is_odd(kept, len(rows)):
            return []
        if len(rows) == 1:
            return rows
        middle = len(rows) // 2
        found: list[Row] = []
        for part in (rows[:middle], rows[middle:]):
            if len(found) < MAX_ROWS:
                found += yield from self.bisect(part)
        return found

    def _is_odd(self, kept: StepResult, count: int) -> bool:
        """Whether the step with these rows is odd against the one without any."""
        if not kept.is_finite:
            return True
        before = self._without
        # A step's loss is a mean over all rows: exchanging some of them moves it by less.
        share = math.sqrt(2 * count / self._total)
        if is_finite(kept.loss) and is_finite(before.loss):
            moved = (kept.loss or 0.0) - (before.loss or 0.0)
            if moved > ODD_SIGMAS * self._scale.loss_sigma * share:
                return True
        if not is_finite(before.grad_norm) or not before.grad_norm or not kept.grad_norm:
            return False
        grown = math.log(kept.grad_norm / before.grad_norm)
        return grown > ODD_SIGMAS * self._scale.norm_sigma * share


def _pass(step: int, kept: tuple[Row, ...], others: tuple[int, ...]) -> Pass:
    rows = Rows(kept=kept, healthy=others)
    return Pass(first=step, last=step, starts_at_step=True, rows=rows)
