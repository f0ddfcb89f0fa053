"""How a run is cut, saved and loaded never changes its incidents; live equals the finished log."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples, some_of
from tests.kit.tracked import alarm, tracked, tracked_in_pieces

from trimtab.core.block import Block, Column, Event
from trimtab.core.events import NOT_APPLIED, UNDO, UNDO_OUTCOME
from trimtab.core.findings import HARMLESS, Finding, Severity, Symptom
from trimtab.core.incidents import Incident, IncidentChange


@dataclasses.dataclass(frozen=True)
class Made:
    """A run with alarms at some of its records."""

    run: Block
    alarms: list[Finding]
    seed: int

    def __repr__(self) -> str:
        return f"made({self.seed})"


def made(seed: int) -> Made:
    """A run with trouble of every kind: events, evaluations, kept-out steps, restarts, pauses."""
    dice = np.random.default_rng(seed)
    length = int(dice.choice([30, 200, 200, 700]))
    at = np.arange(length)
    loss = 2.0 + 2.0 * np.exp(-at / 100) + dice.normal(0, dice.choice([0.003, 0.03]), length)
    discarded = np.zeros(length)
    rows: list[tuple[int, Symptom]] = []
    for _ in range(dice.integers(1, 6)):
        row, span = int(dice.integers(0, length)), int(dice.choice([1, 2, 3, 20, 150, 2000]))
        part = slice(row, row + span)
        what = dice.integers(0, 6)
        if what == 0:
            loss[part] = np.nan
        elif what == 1:
            loss[part] = np.nan
            discarded[part] = dice.random() < 0.8
        elif what == 2:
            loss[part] += dice.choice([0.1, 1.0, 30.0]) * np.linspace(0, 1, len(loss[part]))
        elif what == 3:
            loss[part] += dice.choice([0.1, 1.0, 30.0]) * np.exp(-np.arange(len(loss[part])) / 9)
        elif what == 4:
            loss[part] = loss[row]
        else:
            loss[part] += dice.choice([0.1, 1.0])
        symptom = Symptom.NONFINITE_LOSS if what < 2 else Symptom.LOSS_SPIKE
        rows.append((min(row + int(dice.choice([0, 3, 20])), length - 1), symptom))
    others = [Symptom.SLOW, Symptom.STALL, *dice.choice(np.array(Symptom, dtype=object), 4)]
    rows += [(int(dice.integers(0, length)), symptom) for symptom in others]
    stride = int(dice.choice([1, 1, 5, 100]))
    step = stride * at
    attempt = np.zeros(length, dtype=np.int64)
    if dice.random() < 0.5:
        back = int(dice.integers(1, length))
        step[back:] -= stride * int(dice.integers(1, back + 1))
        attempt[back:] = 1
    columns = {"loss": Column(loss, dice.random(length) < dice.choice([1.0, 1.0, 0.8]))}
    for name, values, fraction in (
        ("discarded", discarded, 1.0),
        ("eval_loss", 2.2 + 0.3 * (at > length / 2) + dice.normal(0, 0.01, length), 0.05),
        ("lr", 1e-3 * (1 - at / length), 1.0),
        ("reward", np.where(at < length / 2, 0.8, 0.1) + dice.normal(0, 0.02, length), 1.0),
        ("param_norm", np.where(at == length // 2, np.inf, 7.0), 0.1),
    ):
        if dice.random() < (0.2 if name == "reward" else 0.6):
            columns[name] = Column(values, dice.random(length) < fraction)
    events = [
        Event(kind=NOT_APPLIED, tick=int(row), step=int(step[row]))
        for row in np.flatnonzero(np.isnan(loss) & (dice.random(length) < 0.9))
        if dice.random() < 0.5
    ]
    for row in dice.integers(0, length, dice.choice([0, 1, 100])).tolist():
        facts = {"updates_lost": 3} if dice.random() < 0.6 else {"helped": False}
        kind = UNDO if "updates_lost" in facts else UNDO_OUTCOME
        events.append(Event(kind=kind, tick=row, step=int(step[row]), facts=facts))
    run = Block.from_columns(
        columns,
        step=step,
        attempt=attempt,
        events=tuple(sorted(events, key=lambda event: event.tick)),
    )
    alarms = []
    for row, symptom in sorted(rows):
        onset = int(dice.integers(max(row - 30, 0), row + 1)) if dice.random() < 0.3 else None
        severity = Severity.ALARM if dice.random() < 0.8 else Severity.WARN
        alarms.append(alarm(row, symptom, severity, onset, int(step[row])))
    return Made(run, alarms, seed)


def text(found: tuple[list[Incident], list[IncidentChange]]) -> str:
    """Everything, as text: a NaN is not equal to itself. The repr of an incident is short."""
    incidents, changes = found
    parts: list[Incident | IncidentChange] = [*incidents, *changes]
    return "\n".join(str(dataclasses.asdict(part)) for part in parts)


seeds = st.integers(0, 10**9)


@settings(max_examples=examples(180))
@given(seeds, st.integers(1, 1500), st.sets(st.integers(0, 1500), max_size=6))
@example(2, 1500, set())
def test_how_a_run_is_cut_and_saved_changes_nothing(seed: int, end: int, edges: set[int]) -> None:
    """The pieces of one record are a live run; it says at any end what its log says there."""
    this = made(seed)
    run = this.run[:end]
    alarms = [one for one in this.alarms if one.tick < len(run)]
    whole = text(tracked(run, *alarms))
    bounds = [0, *sorted(edge for edge in edges if edge < len(run)), len(run)]
    pieces = [run[a:b] for a, b in pairwise(bounds)]
    assert text(tracked_in_pieces(pieces, *alarms)) == whole
    assert text(tracked_in_pieces(pieces, *alarms, saved=True)) == whole
    assert text(tracked_in_pieces(list(run.cut(1)), *alarms)) == whole


@pytest.mark.parametrize("seed", some_of(range(6), 0, 1))
def test_saving_at_every_record_changes_nothing(seed: int) -> None:
    this = made(seed)
    run = this.run[:250]
    alarms = [one for one in this.alarms if one.tick < len(run)]
    whole = text(tracked(run, *alarms))
    assert text(tracked_in_pieces(list(run.cut(1)), *alarms, saved=True)) == whole


@settings(max_examples=examples(120))
@given(seeds)
def test_lost_time_and_numbers_do_not_know_of_each_other(seed: int) -> None:
    this = made(seed)
    numbers = [one for one in this.alarms if one.symptom not in HARMLESS]
    pauses = [one for one in this.alarms if one.symptom in HARMLESS]

    def found(*alarms: Finding) -> list[str]:
        incidents, _ = tracked(this.run, *alarms)
        return sorted(str(dataclasses.asdict(one) | {"number": 0}) for one in incidents)

    assert found(*this.alarms) == sorted([*found(*numbers), *found(*pauses)])


def test_more_skipped_steps_than_are_remembered_are_known_in_a_whole_log() -> None:
    loss = 3.0 + np.random.default_rng(0).normal(0, 0.03, 2000)
    skipped = [400, 401, *range(800, 1000)]
    loss[skipped] = np.nan
    events = tuple(Event(kind=NOT_APPLIED, tick=row, step=row) for row in skipped)
    run = Block.from_columns({"loss": Column.complete(loss)}, step=np.arange(2000), events=events)
    found = alarm(400, Symptom.NONFINITE_LOSS), alarm(800, Symptom.NONFINITE_LOSS)
    incidents, _ = tracked(run, *found)
    assert [one.records for one in incidents] == [2, 200]
    assert all(one.facts.is_kept_out for one in incidents)
