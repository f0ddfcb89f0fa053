"""The write-up: the parts of a post-mortem for the learner to fill in, and how it compares."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.core.actions import ActionKind
from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.lab.practice.exercise import Exercise
from trimtab.lab.practice.scoring import Mark
from trimtab.policy.incident_report import IncidentReport

NEAR_STEPS = 5
"""Onsets that differ by no more are the same: a curve cannot be read more closely by eye."""

NONE = "none"

_SECTIONS = (
    ("Symptoms", "Numbers only.", ("Onset step", "Loss before", "Peak loss", "Gradient norm")),
    ("Evidence", "Where it can be seen: batches, layers, events.", ()),
    ("Hypotheses, ranked", "Each with the panel that supports it.", ()),
    ("Discriminating evidence", "What tells the first from the second.", ()),
    ("The questions asked", "In which order you looked, and what you saw.", ()),
    ("Root cause", "One sentence, and its number below, or none.", ("Cause",)),
    ("Class", f"One of: {', '.join(IncidentClass)}, or none.", ("Class",)),
    ("Action", f"One of: {', '.join(ActionKind)}.", ("Action",)),
    ("Smallest remedy", "What keeps it from coming again.", ()),
    ("Verification", "Which run, until which step, would show that it works.", ()),
    ("Cost", "Steps, time, tokens, money.", ()),
    ("Lesson", "One sentence for whoever comes next.", ()),
)
"""The parts of our own post-mortem, in its order; a hint for each, and the lines to fill in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUp:
    """What can be compared of a post-mortem; an empty text is a line that was left empty."""

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
    """Whether yours and ours say the same."""


def empty_write_up(title: str) -> str:
    """The template."""
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
    """What the learner filled in; None if it was nothing that can be compared."""
    found = WriteUp(
        onset=_filled_in("Onset step", text),
        incident_class=_filled_in("Class", text),
        cause=_filled_in("Cause", text),
        action=_filled_in("Action", text),
    )
    empty = WriteUp(onset="", incident_class="", cause="", action="")
    return None if found == empty else found


def write_up_of(opinion: IncidentReport | None) -> WriteUp:
    """The same lines as the judge would fill them in; None is that it saw nothing."""
    if opinion is None:
        return WriteUp(onset=NONE, incident_class=NONE, cause=NONE, action=ActionKind.WAIT)
    diagnosis = opinion.diagnosis
    return WriteUp(
        onset=str(diagnosis.incident.onset.step),
        incident_class=diagnosis.incident_class or "open",
        cause=diagnosis.cause.id if diagnosis.cause else NONE,
        action=opinion.action.kind,
    )


def truth_of(exercise: Exercise, marks: list[Mark]) -> WriteUp:
    """The same lines as they were true; what class it was is a matter of opinion."""
    was = exercise.disturbance()
    best = dict.fromkeys(mark.answer.kind for mark in marks if mark.score == 100)
    return WriteUp(
        onset=str(was.onset) if was.is_fault else NONE,
        incident_class="",
        cause=was.cause.id if was.cause else NONE,
        action=", ".join(best),
    )


def compare(yours: WriteUp, ours: WriteUp, truth: WriteUp) -> list[Line]:
    """Line by line, whether the learner and the judge agree."""
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
    # "Rollback to step 100" is "roll back", "F01 hard batch" is "F01".
    said = " ".join(yours.lower().replace("rollback", "roll back").split())
    return said.startswith(ours.lower())


def _filled_in(line: str, text: str) -> str:
    found = re.search(rf"^{line}:[ \t]*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
