"""Events in words: one line each, for pages and post-mortems."""

from collections.abc import Iterator
from typing import Any

from trimtab.core.block import Block, Event
from trimtab.core.incidents import Incident
from trimtab.core.jsonable import to_number
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.explain.evidence.check import number

NOTE = "note"
INCIDENT = "incident"

QUIET = frozenset({INCIDENT, "state saved", "checkpoint", "evaluation", "recovery", "gate armed"})
"""Events of every healthy run."""

_ACTS = frozenset(
    {
        ROLLBACK,
        "decision",
        "probe",
        "check",
        "step discarded",
        "gradient scaled down",
        "settings changed",
        "proposal",
        "answer",
        "released",
    }
)
"""What a run did about an incident."""

_AFTER = 64
"""Ticks after an incident in which its remedy is still checked."""

_MAX_CHARS = 300


def is_quiet(event: Event) -> bool:
    """Whether it happens in every healthy run."""
    return event.kind in QUIET or "canary" in str(event.facts.get("purpose", ""))


def event_text(event: Event) -> str:
    """What happened, without the step."""
    facts = event.facts
    if event.kind == NOTE:
        text = str(facts.get("text", ""))
    elif event.kind == ROLLBACK:
        text = f"from step {facts.get('from')} to step {facts.get('to')}; {facts.get('reason', '')}"
    elif event.kind == "decision":
        text = f"{facts.get('act')}; {facts.get('reason', '')}"
    else:
        text = ", ".join(f"{name} {_value(value)}" for name, value in facts.items())
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."


def acts_of(incident: Incident, block: Block) -> Iterator[Event]:
    """What the run did during an incident and shortly after it."""
    end = (incident.end or incident.last).tick + _AFTER
    for event in block.events:
        if event.kind in _ACTS and not is_quiet(event) and incident.onset.tick <= event.tick <= end:
            yield event


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(map(_value, value))
    as_number = to_number(value)
    return str(value) if as_number is None else number(as_number)
