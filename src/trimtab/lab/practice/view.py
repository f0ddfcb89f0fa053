"""What the learner sees: the run so far, what became of each answer, what it really was."""

from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.core.block import Block, Column
from trimtab.core.signals import (
    DATA_SECONDS,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    PARAM_NORM,
    TOKEN_RARITY,
    TOKENS,
    UNIQUE_TOKEN_SHARE,
    UPDATE_NORM,
)
from trimtab.diagnose.evidence.check import number
from trimtab.lab.practice.exercise import Exercise, Home
from trimtab.lab.practice.scoring import Mark, Stakes
from trimtab.lab.practice.write_up import Line
from trimtab.report.escaping import printable
from trimtab.report.sparkline import marks, sparkline

_RECENT = 40
"""Records that are drawn one by one. Longer than it takes anybody to be asked, so what lies before
them is healthy."""

_BASELINE = 50
_EVALUATIONS = 5
_CURVES = (LOSS, GRAD_NORM, LR)
_NUMBERS = (
    LOSS,
    GRAD_NORM,
    LR,
    UPDATE_NORM,
    PARAM_NORM,
    LOSS_SCALE,
    TOKENS,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
    "max_attention_logit",
    DATA_SECONDS,
)
_QUIET_EVENTS = frozenset({"evaluation", "checkpoint", "incident"})
"""Evaluations and checkpoints have lines of their own; the judge's opinion would be the answer."""

_INDENT = 11
_LONGEST_FACT = 60

_HOMES = {
    Home.BATCHES: "It lived in some batches: it comes again with the same data, and is left behind "
    "with other data.",
    Home.ONCE: "It happened once, in the machine: whatever begins before it is rid of it.",
    Home.SETTINGS: "It lived in the code or the settings: it comes again at the same step, "
    "whatever is restored, until somebody mends it.",
}


def show_run(shown: Block, exercise: Exercise, width: int) -> RenderableType:
    """The run up to the step at which the learner is asked, and nothing of what it is."""
    recent = shown[max(len(shown) - _RECENT, 0) :]
    room = max(min(width - _INDENT, 80), 20)
    config, regime = exercise.config(), exercise.scenario.setting.regime
    return Group(
        Text(
            f"Exercise {exercise.seed}: {exercise.asked} of {exercise.steps} steps are done.",
            style="bold",
        ),
        Text(f"{config.dtype}, {regime}, {config.warmup} steps of warm-up, then a cosine"),
        *_curves(shown, "the whole run", room),
        *_curves(recent, f"the last {len(recent)} steps", room),
        Text(),
        *_numbers(shown),
        Text(),
        *_events(shown),
        Text(f"checkpoints at steps {_listed(exercise.checkpoints)}"),
    )


def show_marks(graded: list[Mark], chosen: Mark, stakes: Stakes) -> RenderableType:
    """What became of every answer, the best first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("answer")
    for name in ("held-out loss", "steps paid", "score"):
        table.add_column(name, justify="right")
    for one in graded:
        table.add_row(
            f"{one.answer}{' (yours)' if one is chosen else ''}",
            number(one.result.eval_loss),
            str(one.result.steps),
            str(one.score),
            style="bold" if one is chosen else "",
        )
    told = (
        "Mended, and trained on from the last good checkpoint, the run ends at "
        f"{number(stakes.loss_mended)}; that checkpoint is at {number(stakes.loss_before)}. "
        f"A step costs {number(stakes.price)}, half of what a healthy one brings. 100 is the best "
        "that was tried, 0 has lost half of what was to be had."
    )
    return Group(table, Text(), Text(told, style="dim"))


def show_truth(exercise: Exercise, facts: dict[str, object]) -> RenderableType:
    """What it really was."""
    was = exercise.disturbance()
    table = Table.grid(padding=(0, 2))
    last = exercise.steps - 1 if was.end is None else was.end - 1
    cause = f"{was.cause.id} {was.cause.title}" if was.cause else "in no catalogue"
    rows = [
        ("what", was.title),
        ("cause", cause if was.is_fault else "no fault"),
        ("steps", f"{was.onset} to {last}" if last > was.onset else str(last)),
        ("how much", f"{was.strength_name}: {was.strength:.3g} (severity {was.severity:.2f} of 1)"),
        *((name.replace("_", " "), _short(fact)) for name, fact in facts.items()),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="cyan"), Text(printable(value)))
    lesson = _HOMES[exercise.home] if was.is_fault else "There was nothing to do about it."
    return Group(Text("What it was", style="bold"), table, Text(lesson))


def show_comparison(lines: list[Line]) -> RenderableType:
    """The learner's write-up beside ours and what was true."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "yours", "ours", "agreed", "true"):
        table.add_column(name)
    for line in lines:
        table.add_row(
            line.name,
            Text(printable(line.yours) or "-"),  # not a str: brackets would be read as markup
            line.ours,
            Text("yes", style="green") if line.agrees else Text("no", style="red"),
            line.truth,
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
    yield Text(f"mean of the steps {first} to {last}, and what came after them", style="dim")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("signal", no_wrap=True)
    for name in ("mean", "lowest", "highest", "at step", "last", "NaN, inf"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in _NUMBERS:
        if shown.column(name).recorded:
            table.add_row(name, *_cells(before.column(name), since.column(name), since))
    yield table


def _cells(before: Column, since: Column, block: Block) -> Iterator[str]:
    healthy, values = before.values[before.finite], since.values
    yield number(float(healthy.mean())) if len(healthy) else ""
    finite, present = np.flatnonzero(since.finite), np.flatnonzero(since.present)
    if len(finite):
        highest = finite[np.argmax(values[finite])]
        yield number(float(values[finite].min()))
        yield number(float(values[highest]))
        yield str(block.step[highest])
    else:
        yield from ("", "", "")
    yield number(float(values[present[-1]])) if len(present) else ""
    yield str(int(since.nonfinite.sum()) or "")


def _events(shown: Block) -> Iterator[Text]:
    held_out = shown.column(EVAL_LOSS)
    rows = np.flatnonzero(held_out.present)[-_EVALUATIONS:]
    told = (f"{number(float(held_out.values[row]))} at {shown.step[row]}" for row in rows)
    yield Text(f"held-out loss {', '.join(told)}")
    for event in shown.events:
        if event.kind not in _QUIET_EVENTS:
            facts = ", ".join(f"{name}: {fact}" for name, fact in event.facts.items())
            yield Text(printable(f"{event.kind} at step {event.step} ({facts})"))


def _short(fact: object) -> str:
    told = ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
    return told if len(told) <= _LONGEST_FACT else f"{told[:_LONGEST_FACT]} ..."


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))
