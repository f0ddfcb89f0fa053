"""The write-up: a post-mortem template for the learner, and its comparison with trimtab's."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.core.actions import ActionKind
from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.explain.diagnosis import Diagnosis
from trimtab.lab.practice.exercise import Exercise
from trimtab.lab.practice.scoring import Mark

NEAR_STEPS = 5
"""Onsets within this many steps agree: a curve cannot be read more precisely by eye."""

NONE = "none"

_SECTIONS = (
    ("Symptoms", "Numbers only.", ("Onset step", "Loss before", "Peak loss", "Gradient norm")),
    ("Evidence", "Where it shows: batches, layers, events.", ()),
    ("Hypotheses, ranked", "Each with the evidence that supports it.", ()),
    ("Discriminating evidence", "What distinguishes the first from the second.", ()),
    ("The questions asked", "In which order you looked, and what you saw.", ()),
    ("Root cause", "One sentence, and its number from the list below, or none.", ("Cause",)),
    ("Class", f"One of: {', '.join(IncidentClass)}, or none.", ("Class",)),
    ("Action", f"One of: {', '.join(ActionKind)}.", ("Action",)),
    ("What was done", "What the run, or you, did about it.", ()),
    ("Smallest remedy", "What prevents it from happening again.", ()),
    ("Verification", "Which run, up to which step, would show that it works.", ()),
    ("Cost", "Steps, time, tokens, money.", ()),
    ("Lesson", "One sentence for the next engineer.", ()),
)
"""The sections of trimtab's post-mortem, in its order: heading, hint, and lines to fill in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUp:
    """The parts of a post-mortem that can be compared; an empty string is an unfilled line."""

    onset: str
    incident_class: str
    cause: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a comparison."""

    name: str
    yours: str
    ours: str
    truth: str
    agrees: bool
    """Whether the learner and trimtab agree."""


def empty_write_up(title: str) -> str:
    """The template to fill in."""
    return "\n".join(_template(title)) + "\n"


def _template(title: str) -> Iterator[str]:
    yield f"# {title}"
    for heading, hint, lines in _SECTIONS:
        yield from ("", f"## {heading}", "", f"<!-- {hint} -->")
        yield from (f"{line}:" for line in lines)
    yield from ("", "<!-- The faults by their numbers:")
    yield from (f"{cause.id} {cause.title}" for cause in Cause)
    yield "-->"


def read_write_up(text: str) -> WriteUp | None:
    """What the learner filled in; None if nothing can be compared."""
    found = WriteUp(
        onset=_filled_in("Onset step", text),
        incident_class=_filled_in("Class", text),
        cause=_filled_in("Cause", text),
        action=_filled_in("Action", text),
    )
    empty = WriteUp(onset="", incident_class="", cause="", action="")
    return None if found == empty else found


def write_up_of(diagnosis: Diagnosis | None) -> WriteUp:
    """The same lines as trimtab fills them in; None means that it found no incident."""
    if diagnosis is None:
        return WriteUp(onset=NONE, incident_class=NONE, cause=NONE, action=ActionKind.WAIT)
    return WriteUp(
        onset=str(diagnosis.incident.onset.step),
        incident_class=diagnosis.incident_class or "open",
        cause=diagnosis.cause.id if diagnosis.cause else NONE,
        action=diagnosis.action.kind,
    )


def truth_of(exercise: Exercise, marks: list[Mark]) -> WriteUp:
    """The true values of the same lines; the class is left open, as it depends on judgement."""
    was = exercise.intervention()
    best = dict.fromkeys(mark.answer.kind for mark in marks if mark.score == 100)
    return WriteUp(
        onset=str(was.onset) if was.is_fault else NONE,
        incident_class="",
        cause=was.cause.id if was.cause else NONE,
        action=", ".join(best),
    )


def compare(yours: WriteUp, ours: WriteUp, truth: WriteUp) -> list[Line]:
    """Compare the learner's write-up with trimtab's, line by line."""
    return [
        Line(
            name=field.name.removeprefix("incident_"),
            yours=getattr(yours, field.name),
            ours=getattr(ours, field.name),
            truth=getattr(truth, field.name),
            agrees=_agree(getattr(yours, field.name), getattr(ours, field.name)),
        )
        for field in dataclasses.fields(WriteUp)
    ]


def _agree(yours: str, ours: str) -> bool:
    if ours.isdecimal():  # the onset
        found = re.search(r"[0-9]{1,9}", yours)
        return found is not None and abs(int(found[0]) - int(ours)) <= NEAR_STEPS
    # "Rollback to step 100" counts as "roll back", "F01 hard batch" as "F01".
    answer = " ".join(yours.lower().replace("rollback", "roll back").split())
    return answer.startswith(ours.lower())


def _filled_in(line: str, text: str) -> str:
    found = re.search(rf"^{line}:[ \t]*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
