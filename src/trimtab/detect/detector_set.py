"""DetectorSet: all detectors of a run, fed together.

    block --> EventSchedule --> on_event of the detectors that listen
          --> each detector --> findings, in order of tick

Each detector judges a block on its own, cut where it reacts to an event: the few that are hot with
`update_many`, the others record by record, of a long block (a log) only those that matter to them
(`relevant_rows`), each made once for all. The findings do not depend on how a run is cut; a
property test cuts runs in every way to prove it.

A detector that raises is left out from then on, and the others continue: `failures` has the reason.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block, Column, Event, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.events import NOT_UNDONE, SETTING_CHANGED, UNDO
from trimtab.core.findings import Finding
from trimtab.core.signals import TOKENS
from trimtab.core.state import Stateful

# EventSchedule: what is known to have happened before each record, so that no detector reports it.
#
# Most of it comes as events in the journal. Two things show in the records themselves: an attempt
# that counts up (a resume at an earlier step), and a number of tokens that was constant for long
# and now differs. The first records that differ are odd batches, each alone not comparable (the
# last batch of an epoch is short); when enough of them came in a row, the batch size or the
# sequence length was changed.

MIN_SETTLED = 32
"""Records with the same number of tokens after which a different number is odd. Where the number
differs from batch to batch, this is never reached."""

MIN_LASTING = 4
"""Records in a row with a different number of tokens after which it has changed for good. Chosen:
an epoch ends with one short batch, or with one per data source; ramps stay longer on each size."""

ORDERED_UNDO = "undo that the user asked for"
PLANNED = "planned change"
"""Any event of the user's that is named a change counts as one."""

CHANGES = {
    "resume": KnownChange.RESUMED,
    PLANNED: KnownChange.CHANGED,
    "evaluation": KnownChange.PAUSED,
    "checkpoint": KnownChange.PAUSED,
    UNDO: KnownChange.HARMED | KnownChange.RESTORED,
    ORDERED_UNDO: KnownChange.RESTORED,
    NOT_UNDONE: KnownChange.HARMED,
}
"""By the kind of event in the journal."""


def _known_kind(event: Event) -> str:
    """Return the kind of change that an event is; its own kind if it is none."""
    if event.facts.get("is_ordered"):  # harms nothing, also if it could not be carried out
        return ORDERED_UNDO if event.kind == UNDO else ""
    if event.kind != SETTING_CHANGED and "change" in event.kind.casefold():
        return PLANNED
    return event.kind


class EventSchedule(Stateful):
    """Knows what happened before each record."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, int, str]] = []
        """Tick, step and kind of events whose record has not come yet, in order. A live run writes
        its records some steps late and its events at once, so the step decides as well."""
        self._attempt: int | None = None
        self._tokens = 0.0
        self._num_same = 0
        """Records with that number of tokens, up to MIN_SETTLED; odd batches do not count."""
        self._num_odd = 0
        """Records in a row with a different number, once it was settled."""

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            kind = _known_kind(event)
            if kind in CHANGES:
                self._pending.append((event.tick, event.step, kind))
        self._pending.sort()

    def update(self, block: Block) -> list[tuple[int, KnownChange]]:
        """Return what happened before each of the next records, by row, where anything did."""
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
            if self._attempt is not None:
                change |= KnownChange.WENT_BACK
            self._attempt = attempt
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


SHORT = 48
"""Records up to which one by one is faster than numpy (measured)."""

FIRST_PART, LARGEST_PART = 1024, 65536
"""Records of a long block that are judged at once, at its start and at most. At the start of a run
most records matter to most detectors, and later few do. The largest bounds the memory, and is far
more than the records that a detector remembers."""


class DetectorSet:
    """Blocks in, findings out."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        names = [detector.name for detector in detectors]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"detectors need different names; used twice: {', '.join(twice)}")
        self._schedule = EventSchedule()
        self._detectors = list(detectors)
        self._failures: dict[str, str] = {}
        """By the name of the detector."""
        self._step = 0
        """Of the last record."""
        self._place = ""
        """What the detector that is judging was given: said of it if it fails."""

    @property
    def detectors(self) -> tuple[Detector, ...]:
        """The detectors that are judging, in order."""
        return tuple(self._detectors)

    @property
    def failures(self) -> list[str]:
        """One sentence for each detector that raised and was left out."""
        return list(self._failures.values())

    def update(self, block: Block) -> list[Finding]:
        """Judge the next records; return the findings in order of tick."""
        self._schedule.add(block.events)
        findings: list[Finding] = []
        first, size = 0, FIRST_PART
        while first < len(block):
            findings += self._update_part(block[first : first + size])
            first, size = first + size, min(2 * size, LARGEST_PART)
        return findings

    def state_dict(self) -> dict[str, Any]:
        """Return everything the detectors remember, as JSON values."""
        states = {}
        for detector in tuple(self._detectors):
            try:
                states[detector.name] = detector.state_dict()
            except Exception as error:
                self._leave_out(detector, error, f"at step {self._step}")
        return {
            "schedule": self._schedule.state_dict(),
            "detectors": states,
            "failures": dict(self._failures),
            "step": self._step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the set that gave this state stopped.

        A detector that the state does not have starts without a past.
        """
        self._schedule.load_state_dict(state["schedule"])
        self._failures = dict(state["failures"])
        self._step = state["step"]
        self._detectors = [part for part in self._detectors if part.name not in self._failures]
        for detector in self._detectors:
            if detector.name in state["detectors"]:
                detector.load_state_dict(state["detectors"][detector.name])

    def _update_part(self, block: Block) -> list[Finding]:
        """Let each detector judge these records, one detector after another."""
        changes, records = self._schedule.update(block), _Records(block)
        findings = [
            finding
            for detector in tuple(self._detectors)
            for finding in self._update_detector(detector, records, changes)
        ]
        self._step = int(block.step[-1])
        return sorted(findings, key=lambda finding: finding.tick)  # stable

    def _update_detector(
        self, detector: Detector, records: "_Records", changes: list[tuple[int, KnownChange]]
    ) -> Iterator[Finding]:
        """Let one detector judge a block, with each event before the record that followed it."""
        block, first = records.block, 0
        try:
            for row, change in changes:
                is_left_out = detector.skips_odd_batches and KnownChange.ODD_BATCH in change
                if is_left_out or change & detector.listens_to:
                    if row > first:
                        yield from self._judge(detector, records, first, row)
                    first = row + is_left_out
                    self._place = f"at step {block.step[row]}"
                    if change & detector.listens_to:
                        detector.on_event(change)
            if first < len(block):
                yield from self._judge(detector, records, first, len(block))
        except Exception as error:
            self._leave_out(detector, error, self._place)

    def _judge(
        self, detector: Detector, records: "_Records", first: int, last: int
    ) -> Iterator[Finding]:
        if detector.needs is not None and detector.needs not in records.block.columns:
            return
        rows: Sequence[int] = range(first, last)
        is_one_by_one = type(detector).update is not Detector.update
        if len(rows) > SHORT or not is_one_by_one:
            is_whole = len(rows) == len(records.block)
            block = records.block if is_whole else records.block[first:last]
            # Loss, norms, state and pace change in every record of every log. One by one they take
            # 120 us a record together instead of 6 (measured), so they have an `update_many`; so
            # have a reference and the textbook's window, which look back over many records.
            if type(detector).update_many is not Detector.update_many:
                self._place = f"in steps {block.step[0]} to {block.step[-1]}"
                yield from detector.update_many(block)
                return
            self._place = f"at step {block.step[0]}"
            rows = (first + detector.relevant_rows(block)).tolist()
        for record in records.at(rows):
            self._place = f"at step {record.step}"
            yield from detector.update(record)

    def _leave_out(self, detector: Detector, error: Exception, place: str) -> None:
        self._detectors.remove(detector)
        self._failures[detector.name] = (
            f"detector {detector.name!r} failed {place} "
            f"({type(error).__name__}: {error}) and was left out"
        )


class _Records:
    """The records of a block, each made when a detector first asks for it, and kept for others."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self._made: dict[int, Record] = {}

    def at(self, rows: Sequence[int]) -> Iterator[Record]:
        """Yield the records of some rows, which must ascend."""
        missing = [row for row in rows if row not in self._made]
        if missing:
            self._made.update(zip(missing, self.block.records(np.array(missing)), strict=True))
        return map(self._made.__getitem__, rows)
