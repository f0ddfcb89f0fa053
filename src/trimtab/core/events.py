"""The events of a journal that the judgement depends on, and which records were rolled back.

    step    38 39 40 41 42 43 | 40 41 42 43 44 45 ...
    tick    38 39 40 41 42 43 | 44 45 46 47 48 49 ...
                  '---------'   rolled back: no part of what led to tick 48

The journal has two events for it: `recovery` where a run starts that can roll back, and `rollback`
before the first record of each new attempt.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray, Column, Event, StoredColumns

PROBE_ANSWER = "probe answer"
"""An experiment is over. Facts: `probe` (its name), `incident`, `about` (the step), `answer`,
`sentence`, `facts`, and what it has cost in `steps` and `seconds`."""

DECISION = "decision"
"""What a run has decided about an incident. Facts: `incident`, `act`, `cost`, `reason`, and `hold`,
the settings that are held at the values of a snapshot because they differed from it."""


RECOVERY = "recovery"
"""The event of a run that can roll back; `oldest_steps` says how far."""

ROLLBACK = "rollback"
"""The event of a return; `to` is the step that comes next."""


def rollback_target(event: Event) -> int | None:
    """Return the step that a rollback returns to; None if the journal does not say."""
    to: Any = event.facts.get("to")
    return to if isinstance(to, int) else None


def cut_at_rollbacks(block: Block) -> Iterator[tuple[Event | None, Block]]:
    """Cut a block at its rollbacks; yield each piece with the rollback before it."""
    events = list(block.events)
    places = [at for at, event in enumerate(events) if event.kind == ROLLBACK]
    rollback: Event | None = None
    row = first = 0
    for at in places:
        last = max(block.row_of(events[at].tick), row)  # two in a row have nothing between them
        yield rollback, _part(block, row, last, events[first:at])
        rollback, row, first = events[at], last, at + 1
    yield rollback, _part(block, row, len(block), events[first:]) if places else block


def rolled_back_rows(run: Block, tick: int | None = None) -> BoolArray:
    """Return which records were rolled back; only those up to a tick if one is given."""
    is_gone = np.zeros(len(run), dtype=np.bool_)
    for event in run.events:
        if event.kind != ROLLBACK or (tick is not None and event.tick > tick):
            continue
        # Records of all attempts so far: a run may return to a step more than once.
        to, row = rollback_target(event), run.row_of(event.tick)
        if to is not None:
            is_gone[:row] |= run.step[:row] >= to
    return is_gone


def line_to(run: Block, tick: int) -> Block:
    """Return the run without the records that were rolled back up to a tick."""
    is_gone = rolled_back_rows(run, tick)
    return _select(run, ~is_gone) if is_gone.any() else run


def before_rollback(run: Block, tick: int) -> Block:
    """Return the run up to the first rollback after a tick."""
    later = (e.tick for e in run.events if e.kind == ROLLBACK and e.tick > tick)
    end = min(later, default=None)
    return run if end is None else run[: run.row_of(end)]


def _part(block: Block, first: int, last: int, events: list[Event]) -> Block:
    return dataclasses.replace(block[first:last], events=tuple(events))


def _select(run: Block, rows: BoolArray) -> Block:
    return dataclasses.replace(
        run,
        step=run.step[rows],
        tick=run.tick[rows],
        attempt=run.attempt[rows],
        data_position=run.data_position[rows],
        columns=_select_columns(run.columns, rows),
    )


def _select_columns(columns: Mapping[str, Column], rows: BoolArray) -> Mapping[str, Column]:
    if isinstance(columns, StoredColumns):
        return columns.select(rows)
    return {name: Column(c.values[rows], c.present[rows]) for name, c in columns.items()}


UNDO = "undo"
"""Weights and optimizer were restored from a snapshot. Facts: `why`, `tensor`, `updates_lost`."""

NOT_UNDONE = "harm not undone"
"""Harm was proven and not undone. Facts: `why`, `tensor`, `because`."""
