"""half: which sequences of the step make it odd, and which of their tokens, by bisection.

All sequences but some are replaced by those of a healthy step. The loss is a mean over sequences,
so what the others add cancels. A half that is not odd is left alone; the other is halved again.
Then tokens at both ends of an offending sequence are replaced, as long as it stays as odd.

Answers:
    "sequences"   `facts["rows"]` has data position, rank and row of each; `facts["tokens"]` the
                  first and the last offending token of the first ones, by place in `rows`
    "none"        the step is not odd because of its sequences
"""

import math
from collections.abc import Callable, Generator

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

MAX_TOKEN_ROWS = 2
"""Offending sequences whose tokens are looked for: the first ones show what is wrong."""

STAYS_ODD = 0.9
"""Share of the oddity that must stay when tokens are replaced. Source: of a sequence that is odd
throughout, at most about a tenth is lost at each end; a single token is found exactly."""


def half(question: Question) -> Experiment:
    """Bisect over micro-batches, sequences and tokens."""
    step = question.step
    healthy = [one for one in question.healthy() if not one.discarded]
    scale = Scale.of(question)
    if scale is None or not healthy:
        return open_answer(question, "there is no healthy step to take sequences from")
    search = _Search(question, scale, question.positions(healthy[-1].step))
    first = yield from search.do(())
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
    search.without, search.total = first.last, len(all_rows)
    found = yield from search.bisect(all_rows)
    if not found:
        return Answer(
            experiment=question.experiment,
            says="none",
            sentence=f"no sequence of step {step} makes it odd by itself",
        )
    tokens: list[list[int]] = []
    for row in found[:MAX_TOKEN_ROWS]:
        span = yield from search.tokens_of(row, first.num_tokens)
        if span is None:
            break
        tokens.append([span[0], span[1] - 1])
    positions = question.positions(step)
    named = [[positions[at], rank, row] for rank, at, row in found]
    shown = ", ".join(
        f"row {row} of batch {position}"
        + (f" (tokens {tokens[place][0]} to {tokens[place][1]})" if place < len(tokens) else "")
        for place, (position, _, row) in enumerate(named[:6])
    )
    return Answer(
        experiment=question.experiment,
        says="sequences",
        sentence=f"{len(named)} of {len(all_rows)} sequences make step {step} odd: {shown}"
        + (", ..." if len(named) > 6 else ""),
        facts={
            "rows": named,
            "of": len(all_rows),
            "tokens": tokens,
            "of_tokens": first.num_tokens,
        },
    )


class _Search:
    def __init__(self, question: Question, scale: Scale, others: tuple[int, ...]) -> None:
        self._question = question
        self._scale = scale
        self._others = others
        self._num_steps = 0
        self.without: StepResult | None = None
        """The step with healthy sequences alone."""
        self.total = 1

    def do(
        self, kept: tuple[Row, ...], span: tuple[int, int] | None = None
    ) -> Generator[Pass, Result, Result]:
        """Do the step again with these rows, and of them these tokens."""
        step = self._question.step
        rows = Rows(kept=kept, healthy=self._others, span=span)
        result = yield Pass(first=step, last=step, starts_at_step=True, rows=rows)
        self._num_steps += len(result.steps)
        return result

    def bisect(self, rows: list[Row]) -> Generator[Pass, Result, list[Row]]:
        """The rows of this list that make the step odd."""
        kept = (yield from self.do(tuple(rows))).last
        if kept is None or self._oddity(kept, len(rows)) <= 1.0:
            return []
        if len(rows) == 1:
            return rows
        middle = len(rows) // 2
        found: list[Row] = []
        for part in (rows[:middle], rows[middle:]):
            if len(found) < MAX_ROWS:
                found += yield from self.bisect(part)
        return found

    def tokens_of(self, row: Row, length: int) -> Generator[Pass, Result, tuple[int, int] | None]:
        """The shortest span of a row's tokens that is as odd as the row; None if that costs more
        than is left, or if there are no tokens."""
        cost = 2 * math.ceil(math.log2(max(length, 2))) + 1
        if length < 2 or self._num_steps + cost > self._question.max_steps:
            return None
        whole = (yield from self.do((row,))).last
        wanted = 0.0 if whole is None else STAYS_ODD * self._oddity(whole, 1)
        if wanted <= 0.0:
            return None
        first = yield from self._last_odd(row, length - 1, wanted, lambda at: (at, length))
        cut = yield from self._last_odd(
            row, length - 1 - first, wanted, lambda at: (first, length - at)
        )
        return first, length - cut

    def _last_odd(
        self, row: Row, largest: int, wanted: float, span: Callable[[int], tuple[int, int]]
    ) -> Generator[Pass, Result, int]:
        """How many tokens can be replaced at one end, by bisection."""
        low, high = 0, largest
        while low < high:
            middle = (low + high + 1) // 2
            kept = (yield from self.do((row,), span(middle))).last
            if kept is not None and self._oddity(kept, 1) >= wanted:
                low = middle
            else:
                high = middle - 1
        return low

    def _oddity(self, kept: StepResult, count: int) -> float:
        """How odd the step is with these rows, against the one without any; over 1 is odd."""
        if not kept.is_finite:
            return math.inf
        before = self.without
        if before is None:
            return 0.0
        # A step's loss is a mean over all rows: exchanging some of them moves it by less.
        share = ODD_SIGMAS * math.sqrt(2 * count / self.total)
        found = 0.0
        if is_finite(kept.loss) and is_finite(before.loss):
            moved = (kept.loss or 0.0) - (before.loss or 0.0)
            found = moved / (self._scale.loss_sigma * share)
        if is_finite(before.grad_norm) and before.grad_norm and kept.grad_norm:
            grown = math.log(kept.grad_norm / before.grad_norm)
            found = max(found, grown / (self._scale.norm_sigma * share))
        return found
