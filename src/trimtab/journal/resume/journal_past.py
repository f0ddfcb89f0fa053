"""JournalPast: what the journal of a run says about the state at a step.

Exact where a state was saved at that step (the event `state saved`); else from the records around
it, which have the learning rate and the batch of every step and the optimizer's count of some.

    attempt 0:   97 98 99 | 100 101 102 |stopped      what came before and after the save at 100
    attempt 1:              100 101 |stopped          resumed from it, perhaps wrongly: no witness
    attempt 2:              100 ...                   the resume that is judged
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from trimtab.core import signals
from trimtab.core.block import NO_POSITION, Block, Event, FloatArray, IntArray
from trimtab.journal.resume import facts
from trimtab.journal.resume.facts import Facts
from trimtab.journal.rollback import LR_FACTOR

STEPS_BEFORE, STEPS_AFTER = 4096, 64
"""Steps around the resume whose records are kept. Source: as many batches as `repeated-batch`
remembers; a loader that skips is off by a few."""

_KEPT = (
    signals.FINGERPRINT,
    signals.LR,
    signals.LOSS_SCALE,
    signals.ADAM_STEP,
    signals.ADAM_M_NORM,
    signals.ADAM_V_NORM,
)
_MOMENTS = {signals.ADAM_M_NORM: "exp_avg", signals.ADAM_V_NORM: "exp_avg_sq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPast:
    """The part of a journal that a resume is compared with."""

    values: Mapping[str, Mapping[int, float]]
    """The kept signals by step, of the attempt that made the last step before the resume."""
    positions: Mapping[int, int]
    """Data positions by step."""
    states: Mapping[int, Facts] = field(default_factory=dict)
    """The facts of saved states, by their step."""
    first_step: int = 0
    """The number of the first record: some trainers count from 1."""
    first_lrs: tuple[float, ...] = ()
    first_batch: float | None = None
    """Fingerprint of the first batch of the run."""

    @classmethod
    def of(cls, block: Block, step: int) -> "JournalPast":
        """Return what is worth keeping of a journal for a run that resumes at `step`."""
        near = _rows_near(block, step)
        first, end = (int(near[0]), int(near[-1]) + 1) if len(near) else (0, 0)
        around, near = block[first:end], near - first  # a whole column would be read
        steps = around.step[near]
        values: dict[str, dict[int, float]] = {}
        for name in _KEPT:
            column = around.column(name)
            good = column.finite[near]
            found = column.values[near][good]
            if name == signals.LR:
                found = found / _lr_factors(block.events, around.tick[near][good])
            values[name] = dict(zip(steps[good].tolist(), found.tolist(), strict=True))
        positions = around.data_position[near]
        known = positions != NO_POSITION
        batches = _first(block, signals.FINGERPRINT, 1)
        return cls(
            values=values,
            positions=dict(zip(steps[known].tolist(), positions[known].tolist(), strict=True)),
            states=_states(block.events),
            first_step=int(block.step[0]) if len(block) else 0,
            first_lrs=tuple(_first(block, signals.LR, facts.FIRST_LRS)),
            first_batch=batches[0] if batches else None,
        )

    def saved_at(self, step: int, loaded: Mapping[str, float] | None = None) -> Facts:
        """Return the facts of the state before `step`.

        `loaded` has those that came with the checkpoint; they outrank the journal, except for the
        learning rate, of which the journal may know what the next step had.
        """
        given = loaded if loaded is not None else self.states.get(step, {})
        found = dict(given) if facts.LAYOUT in given else {**self._from_records(step), **given}
        found.setdefault(facts.STEP, float(step))
        first = {f"{facts.FIRST_LR}{number}": rate for number, rate in enumerate(self.first_lrs)}
        return found | self._rates(step, found.get(facts.LR)) | first

    def locate(self, step: int, fingerprint: float) -> Facts:
        """Return where the journal has the batch that comes first after a resume at `step`.

        Empty if it is a new batch, or if batches repeat so that their place says nothing.
        """
        batches = self.values[signals.FINGERPRINT]
        known = {facts.BATCH_KNOWN: 1.0} if step in batches else {}
        if batches.get(step) == fingerprint:
            return {**known, facts.BATCH_OFFSET: 0.0}
        repeats = _repeats(batches, step)
        steps_with_it = [at for at, value in batches.items() if value == fingerprint]
        if len(repeats) > 1 or any(step - at in repeats for at in steps_with_it):
            return {}
        found: Facts = dict(known)
        if fingerprint == self.first_batch:
            found[facts.BATCH_RESTARTED] = 1.0
        if steps_with_it:
            nearest = min(steps_with_it, key=lambda at: (abs(at - step), at))
            found[facts.BATCH_OFFSET] = float(nearest - step)
        return found if len(found) > len(known) else {}

    def _from_records(self, step: int) -> Facts:
        found: Facts = {}
        counts = self.values[signals.ADAM_STEP]
        last = max((at for at in counts if at < step), default=None)
        if last is not None:
            found[facts.OPTIMIZER_STEP] = counts[last]
            found[facts.MAX_OPTIMIZER_STEP] = counts[last] + (step - 1 - last)
            for name, key in _MOMENTS.items():
                if last in self.values[name]:
                    found[f"{facts.STATE_NORM}{key}"] = self.values[name][last]
        scale = self.values[signals.LOSS_SCALE].get(step - 1)
        if scale is not None:
            found[facts.LOSS_SCALE] = scale
        position = self._next_position(step)
        if position is not None:
            found[facts.DATA_POSITION] = float(position)
        return found

    def _next_position(self, step: int) -> int | None:
        if step in self.positions:
            return self.positions[step]
        last, before = self.positions.get(step - 1), self.positions.get(step - 2)
        return None if last is None or before is None else 2 * last - before

    def _rates(self, step: int, saved: float | None) -> Facts:
        rates = self.values[signals.LR]
        if step in rates:  # the run went on after the save
            return {facts.LR: rates[step], facts.LR_CHANGE: 0.0}
        last, before = rates.get(step - 1, saved), rates.get(step - 2)
        expected = saved if saved is not None else last
        if expected is None:
            return {}
        change = abs(last - before) if last is not None and before is not None else 0.0
        return {facts.LR: expected, facts.LR_CHANGE: change}


def _rows_near(block: Block, step: int) -> IntArray:
    """Return the rows that led to `step`, and those of the same attempt from there on."""
    # Masks and no copies: a long run has millions of rows.
    is_before = block.step < step
    if is_before.any():
        newest = block.step.max(where=is_before, initial=np.iinfo(np.int64).min)
        last = int(np.flatnonzero(block.step == newest)[-1])
    else:
        last = -1
    resumes = [e.tick for e in block.events if e.kind == "resume" and e.tick > block.tick[last]]
    stop = block.row_of(min(resumes)) if resumes and last >= 0 else len(block)
    is_near = is_before & (block.step >= step - STEPS_BEFORE)
    is_near[last + 1 :] = False
    is_after = (block.step >= step) & (block.step < step + STEPS_AFTER)
    is_after[: last + 1] = False
    is_after[stop:] = False
    return np.flatnonzero(is_near | is_after)


def _lr_factors(events: Iterable[Event], ticks: IntArray) -> FloatArray:
    """Return what a rollback multiplied the learning rate of each record by."""
    factors = np.ones(len(ticks))
    for event in events:
        factor = event.facts.get(LR_FACTOR)
        if type(factor) is float and 0.0 < factor <= 1.0:
            factors[ticks >= event.tick] = factor
    return factors


def facts_of(event: Event) -> Facts | None:
    """Return the facts in an event, as far as they are numbers: journals may be damaged."""
    state = event.facts.get("state")
    if event.kind != facts.STATE_SAVED or not isinstance(state, Mapping):
        return None
    return {
        str(name): float(value)
        for name, value in state.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _states(events: Iterable[Event]) -> dict[int, Facts]:
    """Return the saved states by step; the latest one of a step counts."""
    states = {}
    for event in events:
        found = facts_of(event)
        if found is not None:
            states[event.step] = found
    return states


def _repeats(batches: Mapping[int, float], step: int) -> set[int]:
    """Return the distances at which batches came again before: one for an epoch."""
    distances: set[int] = set()
    seen: dict[float, int] = {}
    for at in sorted(at for at in batches if at < step):
        before = seen.get(batches[at])
        if before is not None:
            distances.add(at - before)
        seen[batches[at]] = at
    return distances


def _first(block: Block, name: str, count: int) -> list[float]:
    """Return the first finite values of a signal."""
    values: list[float] = []
    if name in block.columns:
        for part in block.cut(STEPS_BEFORE):
            column = part.column(name)
            values += column.values[column.finite].tolist()
            if len(values) >= count:
                break
    return values[:count]
