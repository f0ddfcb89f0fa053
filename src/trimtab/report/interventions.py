"""Interventions: everything that trimtab, a person or the user's code did to a run.

Each has an author, a reason, what was expected of it, and what was measured: the loss before it and
from it on. That the loss has moved does not say why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab.core.block import Block, Event
from trimtab.core.events import (
    NOTE,
    RELAUNCH,
    ROLLBACK_PROPOSED,
    SETTING_CHANGED,
    UNDO,
    UNDO_OUTCOME,
)
from trimtab.core.text import counted, digits
from trimtab.explain.measures import loss_change
from trimtab.report.wording import event_text

SAME_ACT = 16
"""Steps between two discards, or two scaled gradients, up to which they are one row."""

TRIMTAB, CODE, PERSON = "trimtab", "your code", "a person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One act; what nobody stated is empty."""

    step: int
    what: str
    author: str
    reason: str = ""
    expected: str = ""
    outcome: str = ""


def find_interventions(block: Block) -> list[Intervention]:
    """Return every act on a run, in the order of steps."""
    outcomes = {
        e.facts.get("undone_at"): event_text(e) for e in block.events if e.kind == UNDO_OUTCOME
    }
    found = []
    for kind, events in _acts(block.events):
        first = events[0]
        words = _WORDS[kind](events)
        known = outcomes.get(first.step) if kind == UNDO else None
        outcome = known or _measured(block, first)
        found.append(Intervention(step=first.step, **words, outcome=outcome))
    return sorted(found, key=lambda one: one.step)


def _acts(events: Sequence[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Yield the events of each act; what follows closely is one."""
    acts: list[tuple[str, list[Event]]] = []
    latest: dict[str, list[Event]] = {}
    for event in events:
        act = latest.get(event.kind)
        if act and 0 <= event.step - act[-1].step <= SAME_ACT:
            act.append(event)
        elif event.kind in _WORDS:
            acts.append((event.kind, [event]))
            if event.kind in (_DISCARDED, _SCALED):
                latest[event.kind] = acts[-1][1]
    yield from acts


def _measured(block: Block, event: Event) -> str:
    """Return how the loss has moved since an event, in words."""
    change = loss_change(block, event.tick)
    if change is None:
        return "too few losses to tell"
    then, now = digits(change.before), digits(change.after)
    more = f", {change.not_finite} not finite" if change.not_finite else ""
    return f"median loss {then} before, {now} over the next {change.records} records{more}"


_DISCARDED, _SCALED = "step discarded", "gradient scaled down"
_Words = dict[str, str]


def _act(what: str, author: str = TRIMTAB, reason: str = "", expected: str = "") -> _Words:
    return {"what": what, "author": author, "reason": reason, "expected": expected}


def _text(facts: Mapping[str, Any], *names: str) -> str:
    return next((str(facts[name]) for name in names if facts.get(name)), "")


def _discarded(events: Sequence[Event]) -> _Words:
    reasons = events[0].facts.get("reasons")
    return _act(
        f"{counted(len(events), 'step')} discarded",
        reason=" and ".join(map(str, reasons)) if isinstance(reasons, list) else "",
        expected="weights and moments unchanged",
    )


def _undo(events: Sequence[Event]) -> _Words:
    facts = events[0].facts
    return _act(
        f"undo to step {facts.get('to_step')}, {facts.get('updates_lost')} updates lost",
        PERSON if facts.get("is_ordered") else TRIMTAB,
        _text(facts, "why"),
        "the loss is what it was when the restored state was saved",
    )


def _answer(events: Sequence[Event]) -> _Words:
    facts = events[0].facts
    answer = _text(facts, "answer")
    by = TRIMTAB if answer.startswith("no answer") else PERSON
    return _act(f"{answer}: {_text(facts, 'action')}", by)


def _planned(events: Sequence[Event]) -> _Words:
    facts = events[0].facts
    stated = {"what", "why", "reason", "expect", "by"}
    others = {name: value for name, value in facts.items() if name not in stated}
    text = event_text(replace(events[0], facts=others))
    details = ", ".join(filter(None, (_text(facts, "what"), text)))
    return _act(
        f"planned change{f': {details}' if details else ''}",
        _text(facts, "by") or CODE,
        _text(facts, "why", "reason"),
        _text(facts, "expect"),
    )


def _note(events: Sequence[Event]) -> _Words:
    facts = events[0].facts
    return _act(f"note: {_text(facts, 'text')}", _text(facts, "author") or PERSON)


_WORDS: Mapping[str, Callable[[Sequence[Event]], _Words]] = {
    _DISCARDED: _discarded,
    _SCALED: lambda events: _act(
        f"gradient of {counted(len(events), 'step')} scaled down",
        reason="far larger than usual",
        expected="updates of the usual size",
    ),
    UNDO: _undo,
    ROLLBACK_PROPOSED: lambda events: _act("an older state proposed", reason=event_text(events[0])),
    RELAUNCH: lambda events: _act(
        "ended for a relaunch from a proven checkpoint",
        reason=_text(events[0].facts, "reason"),
        expected="the next attempt does not diverge at this data",
    ),
    "answer": _answer,
    "planned change": _planned,
    SETTING_CHANGED: lambda events: _act(event_text(events[0]), CODE),
    "optimizer promoted": lambda events: _act(
        f"{_text(events[0].facts, 'optimizer')} made fused",
        reason="only then steps are discarded on the device",
        expected="results differ by rounding",
    ),
    "resume": lambda _: _act("launched again", "a launch", expected="the run continues"),
    NOTE: _note,
}
"""The kinds of events that are acts, and what each says of itself."""
