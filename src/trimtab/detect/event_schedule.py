"""EventSchedule: what is known to have happened before each record, so that no detector reports it.

Most of it comes as events in the journal. Two things show in the records themselves: an attempt
that counts up (the run went back), and a number of tokens that was constant for long and now
differs. The first records that differ are odd batches, each alone not comparable (the last batch of
an epoch is short); when enough of them came in a row, the batch size or the sequence length was
changed.
"""

from collections.abc import Iterable

from trimtab.core.block import Block, Column, Event, IntArray, Record
from trimtab.core.detector import KnownChange
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.core.signals import TOKENS
from trimtab.core.state import Stateful

MIN_SETTLED = 32
"""Records with the same number of tokens after which a different number is odd. Where the number
differs from batch to batch, this is never reached."""

MIN_LASTING = 4
"""Records in a row with a different number of tokens after which it has changed for good. Chosen:
an epoch ends with one short batch, or with one per data source; ramps stay longer on each size."""

CHANGES = {
    "resume": KnownChange.RESUMED,
    "planned change": KnownChange.CHANGED,
    "evaluation": KnownChange.PAUSED,
    "checkpoint": KnownChange.PAUSED,
    ROLLBACK: KnownChange.SKIPPED_DATA,
}
"""By the kind of event in the journal."""


class EventSchedule(Stateful):
    """Knows what happened before each record."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, str]] = []
        """Tick, step and kind of events whose record has not come yet, in order. A live run writes
        its records some steps late and its events at once, so the step decides as well."""
        self._attempt: int | None = None
        self._continues = False
        """Whether the next attempt continues what is known: a rollback with a rewound judge."""
        self._tokens = 0.0
        self._num_same = 0
        """Records with that number of tokens, up to MIN_SETTLED; odd batches do not count."""
        self._num_odd = 0
        """Records in a row with a different number, once it was settled."""

    def add(self, events: Iterable[Event]) -> None:
        """Add the events that came with a block."""
        for event in events:
            is_rollback = event.kind == ROLLBACK
            self._continues = self._continues or is_rollback
            if event.kind in CHANGES and (event.facts.get("skip") or not is_rollback):
                self._pending.append((event.tick, event.step, event.kind))
        self._pending.sort()

    def update(self, record: Record) -> KnownChange:
        """Return what happened before a record."""
        return self._change(record.tick, record.step, record.attempt, record.signals.get(TOKENS))

    def update_many(self, block: Block) -> list[tuple[int, KnownChange]]:
        """Return what happened before each of many records, by row, where anything did."""
        tokens = block.column(TOKENS)
        if self._is_quiet(block.attempt, tokens):
            return []
        numbers = zip(tokens.values.tolist(), tokens.present.tolist(), strict=True)
        changes = map(
            self._change,
            block.tick.tolist(),
            block.step.tolist(),
            block.attempt.tolist(),
            (number if is_present else None for number, is_present in numbers),
        )
        return [(row, change) for row, change in enumerate(changes) if change]

    def _is_quiet(self, attempts: IntArray, tokens: Column) -> bool:
        """Return whether nothing happens in these records: nearly always, in a long log."""
        is_settled = self._num_same == MIN_SETTLED and not self._num_odd
        return (
            not self._pending
            and bool((attempts == self._attempt).all())
            and not (tokens.present & ~(is_settled & (tokens.values == self._tokens))).any()
        )

    def _change(self, tick: int, step: int, attempt: int, tokens: float | None) -> KnownChange:
        change = self._pop_due(tick, step)
        if attempt != self._attempt:
            if self._attempt is not None and not self._continues:
                change |= KnownChange.WENT_BACK
            self._attempt, self._continues = attempt, False
        if tokens is not None:
            change |= self._judge_tokens(tokens)
        return change

    def _pop_due(self, tick: int, step: int) -> KnownChange:
        change, due = KnownChange.NOTHING, []
        for event in self._pending:
            if event[0] > tick:  # those after it are later still
                break
            if event[1] <= step:
                change |= CHANGES[event[2]]
                due.append(event)
        for event in due:
            self._pending.remove(event)
        return change

    def _judge_tokens(self, tokens: float) -> KnownChange:
        """Judge the number of tokens of a record."""
        if tokens == self._tokens:
            self._num_same, self._num_odd = min(self._num_same + 1, MIN_SETTLED), 0
            return KnownChange.NOTHING
        if self._num_same >= MIN_SETTLED:
            self._num_odd += 1
            if self._num_odd < MIN_LASTING:
                return KnownChange.ODD_BATCH
            change = KnownChange.CHANGED
        else:
            change = KnownChange.NOTHING
        self._tokens, self._num_same, self._num_odd = tokens, 1, 0
        return change
