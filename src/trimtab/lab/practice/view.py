"""What the learner sees: the run so far, the result of each answer, and the truth."""

import re
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.core import signals
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block, Column
from trimtab.core.causes import Cause
from trimtab.core.incidents import IncidentClass
from trimtab.core.text import digits, printable
from trimtab.explain.diagnosis import Diagnosis
from trimtab.lab.practice.exercise import AnswerMark, Exercise, ExerciseOrigin, Stakes
from trimtab.report.sparkline import marks, sparkline
from trimtab.report.wording import QUIET

NEAR_STEPS = 5
"""Onsets within this many steps agree: a curve cannot be read more precisely by eye."""

NONE = "none"

_SECTIONS = (
    ("1 Symptoms", "Numbers only.", ("Onset step", "Loss before", "Peak loss", "Gradient norm")),
    ("2 Hypotheses", "Ranked, each with what speaks for and against it.", ()),
    ("3 Discriminating evidence", "What distinguishes the first from the second.", ()),
    ("4 Root cause", "One sentence, and its number from the list below, or none.", ("Cause",)),
    ("5 Remediation", f"One of: {', '.join(ActionKind)}. Then the smallest fix.", ("Action",)),
    ("6 Verification", "Which run, up to which step, would show that it works.", ()),
    ("7 Lesson", "One sentence for the next engineer.", ()),
    ("Type", f"One of: {', '.join(IncidentClass)}, or none.", ("Class",)),
    ("Outcome", "What became of the loss, and when.", ()),
    ("What was done", "What the run, or you, did about it.", ()),
    ("Cost", "Steps x seconds x price.", ()),
    ("Follow-ups", "What is still to be done, and by whom.", ()),
    ("Evidence", "Where it shows: batches, layers, events.", ()),
    ("The questions asked", "In which order you looked, and what you saw.", ()),
)
"""The sections of trimtab's post-mortem, symptoms first: heading, hint, and lines to fill in."""


WriteUp = dict[str, str]
"""The parts of a post-mortem that can be compared, by the names of `_COMPARED`; an empty string is
a line that was not filled in."""

_COMPARED = {"onset": "Onset step", "class": "Class", "cause": "Cause", "action": "Action"}
"""Each part, and the line of the template that has it."""


def empty_write_up(title: str) -> str:
    return "\n".join(_template(title)) + "\n"


def _template(title: str) -> Iterator[str]:
    yield f"# {title}"
    for heading, hint, lines in _SECTIONS:
        yield from ("", f"## {heading}", "", f"<!-- {hint} -->")
        yield from (f"{line}:" for line in lines)
    yield from ("", "<!-- The faults by their numbers:")
    yield from (f"{cause.id} {cause.title}" for cause in Cause if not cause.is_of_policy)
    yield "-->"


def read_write_up(text: str) -> WriteUp | None:
    found = {}
    for name, line in _COMPARED.items():
        filled = re.search(rf"^{line}:[ \t]*(.*)$", text, re.MULTILINE)
        found[name] = filled[1].strip() if filled else ""
    return found if any(found.values()) else None


def write_up_of(diagnosis: Diagnosis | None) -> WriteUp:
    """Return these lines as trimtab fills them in; None if it found no incident."""
    if diagnosis is None:
        return {"onset": NONE, "class": NONE, "cause": NONE, "action": ActionKind.WAIT}
    return {
        "onset": str(diagnosis.incident.onset.step),
        "class": diagnosis.incident_class.value,
        "cause": diagnosis.cause.id if diagnosis.cause else NONE,
        "action": diagnosis.action.kind,
    }


def truth_of(exercise: Exercise, marks: list[AnswerMark]) -> WriteUp:
    """Return the true values of these lines; the class is open, as it depends on judgement."""
    was = exercise.intervention()
    best = dict.fromkeys(mark.answer.kind for mark in marks if mark.score == 100)
    return {
        "onset": str(was.onset) if was.is_fault else NONE,
        "class": "",
        "cause": was.cause.id if was.cause else NONE,
        "action": ", ".join(best),
    }


def agree(yours: str, ours: str) -> bool:
    """Return whether a line of the learner says the same as trimtab's."""
    if ours.isdecimal():  # the onset
        found = re.search(r"[0-9]{1,9}", yours)
        return found is not None and abs(int(found[0]) - int(ours)) <= NEAR_STEPS
    # "Rollback to step 100" counts as "roll back", "F01 hard batch" as "F01".
    answer = " ".join(yours.lower().replace("rollback", "roll back").split())
    return answer.startswith(ours.lower())


_RECENT = 40
"""Records that are drawn one by one. More than the longest delay from onset to decision, so all
records before them are healthy."""

_BASELINE = 50
_EVALUATIONS = 5
_CURVES = (signals.LOSS, signals.GRAD_NORM, signals.LR)
_NUMBERS = (
    signals.LOSS,
    signals.GRAD_NORM,
    signals.LR,
    signals.UPDATE_NORM,
    signals.PARAM_NORM,
    signals.LOSS_SCALE,
    signals.TOKENS,
    signals.TOKEN_RARITY,
    signals.UNIQUE_TOKEN_SHARE,
    "max_attention_logit",
    signals.DATA_SECONDS,
)
_INDENT = 11
_MAX_FACT_LENGTH = 60

_LESSONS = {
    ExerciseOrigin.BATCHES: (
        "It was in some batches: it returns with the same data, and skipping that data avoids it."
    ),
    ExerciseOrigin.ONCE: (
        "It happened once, in the machine: any checkpoint from before it is clean."
    ),
    ExerciseOrigin.SETTINGS: (
        "It was in the code or the settings: it returns at the same step, whatever is restored, "
        "until the cause is fixed."
    ),
}


def show_run(shown: Block, exercise: Exercise, width: int) -> RenderableType:
    """Return the run up to the decision step, without revealing what is wrong with it."""
    recent = shown[max(len(shown) - _RECENT, 0) :]
    room = max(min(width - _INDENT, 80), 20)
    config, regime = exercise.config(), exercise.scenario.setting.regime
    return Group(
        Text(
            f"Exercise {exercise.seed}: {exercise.decision_step} of {exercise.steps} steps done.",
            style="bold",
        ),
        Text(f"{config.dtype}, {regime}, {config.warmup} steps of warm-up, then cosine decay"),
        *_curves(shown, "the whole run", room),
        *_curves(recent, f"the last {len(recent)} steps", room),
        Text(),
        *_numbers(shown),
        Text(),
        *_events(shown),
        Text(f"checkpoints at steps {', '.join(map(str, exercise.checkpoints))}"),
    )


def show_marks(graded: list[AnswerMark], chosen: AnswerMark, stakes: Stakes) -> RenderableType:
    """Return the result of every answer, the best first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("answer")
    for name in ("held-out loss", "steps computed", "score"):
        table.add_column(name, justify="right")
    for one in graded:
        table.add_row(
            f"{one.answer}{' (yours)' if one is chosen else ''}",
            digits(one.result.eval_loss),
            str(one.result.steps),
            str(one.score),
            style="bold" if one is chosen else "",
        )
    legend = (
        f"The last good checkpoint has a held-out loss of {digits(stakes.loss_before)}; trained on "
        f"from there with the cause fixed, the run ends at {digits(stakes.loss_fixed)}. A step "
        f"costs {digits(stakes.price)}, half of what a healthy step gains. A score of 100 is the "
        "best answer tried, 0 lost half of the possible gain or more."
    )
    return Group(table, Text(), Text(legend, style="dim"))


def show_truth(exercise: Exercise, facts: dict[str, object]) -> RenderableType:
    """Return the truth about the exercise."""
    was = exercise.intervention()
    table = Table.grid(padding=(0, 2))
    last = exercise.steps - 1 if was.end is None else was.end - 1
    cause = f"{was.cause.id} {was.cause.title}" if was.cause else "not in the catalogue"
    rows = [
        ("what", was.title),
        ("cause", cause if was.is_fault else "no fault"),
        ("steps", f"{was.onset} to {last}" if last > was.onset else str(last)),
        ("strength", f"{was.strength:.3g} {was.strength_name} (severity {was.severity:.2f} of 1)"),
        *((name.replace("_", " "), _short(fact)) for name, fact in facts.items()),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="cyan"), Text(printable(value)))
    lesson = _LESSONS[exercise.origin] if was.is_fault else "No action was needed."
    return Group(Text("What it was", style="bold"), table, Text(lesson))


def show_comparison(yours: WriteUp, ours: WriteUp, truth: WriteUp) -> RenderableType:
    """Return the learner's write-up next to trimtab's and the truth."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "yours", "trimtab's", "agree", "truth"):
        table.add_column(name)
    for name in _COMPARED:
        is_same = agree(yours[name], ours[name])
        table.add_row(
            name,
            Text(printable(yours[name]) or "-"),  # not a str: brackets would be parsed as markup
            ours[name],
            Text("yes", style="green") if is_same else Text("no", style="red"),
            truth[name],
        )
    return table


def _curves(block: Block, title: str, room: int) -> Iterator[Text]:
    yield Text(f"\n{title}", style="dim")
    for name in _CURVES:
        if block.column(name).recorded:
            line = Text(name.ljust(_INDENT), style="cyan")
            yield line.append(sparkline(block.column(name), room), style="default")
    drawn = min(len(block), room)
    every = max(len(block) // 5, 1)
    ticks = [(row, str(block.step[row])) for row in range(0, len(block), every)]
    yield Text("step".ljust(_INDENT) + marks(ticks, len(block), drawn), style="dim")


def _numbers(shown: Block) -> Iterator[RenderableType]:
    split = max(len(shown) - _RECENT, len(shown) // 2)
    before, since = shown[max(split - _BASELINE, 0) : split], shown[split:]
    first, last = before.step[0], before.step[-1]
    head = f"mean over steps {first} to {last}, then values after them; bad: NaN or inf"
    yield Text(head, style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("signal", no_wrap=True)
    for name in ("mean", "lowest", "highest", "at", "last", "bad"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in _NUMBERS:
        if shown.column(name).recorded:
            table.add_row(name, *_cells(before.column(name), since.column(name), since))
    yield table


def _cells(before: Column, since: Column, block: Block) -> Iterator[str]:
    healthy, values = before.values[before.finite], since.values
    yield digits(float(healthy.mean())) if len(healthy) else ""
    finite, present = np.flatnonzero(since.finite), np.flatnonzero(since.present)
    if len(finite):
        highest = finite[np.argmax(values[finite])]
        yield digits(float(values[finite].min()))
        yield digits(float(values[highest]))
        yield str(block.step[highest])
    else:
        yield from ("", "", "")
    yield digits(float(values[present[-1]])) if len(present) else ""
    yield str(int(since.nonfinite.sum()) or "")


def _events(shown: Block) -> Iterator[Text]:
    held_out = shown.column(signals.EVAL_LOSS)
    rows = np.flatnonzero(held_out.present)[-_EVALUATIONS:]
    losses = (f"{digits(float(held_out.values[row]))} at step {shown.step[row]}" for row in rows)
    yield Text(f"held-out loss: {', '.join(losses)}")
    for event in shown.events:
        if event.kind not in QUIET:  # the judge's incidents would give it away
            facts = ", ".join(f"{name}: {fact}" for name, fact in event.facts.items())
            yield Text(printable(f"{event.kind} at step {event.step} ({facts})"))


def _short(fact: object) -> str:
    text = ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
    return text if len(text) <= _MAX_FACT_LENGTH else f"{text[:_MAX_FACT_LENGTH]} ..."
