"""What users do on purpose is not undone: `scripts/bench attack purpose [NAMES]`.

Each case trains a tiny model three times with the same seed: bare, in `recover` and, one in four,
in `protect`. Its user changes weights, optimizer state, buffers or settings in the middle (what
people do to loss and data is in `scripts/bench trial`). The cases were written without
knowledge of trimtab's rules. Nothing may be undone, nothing may be called certain, and nobody may
be told to start again.
"""

import json
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from pathlib import Path

import numpy as np
import torch
from tests.kit.launch import run_ranks

import trimtab
from benchmarks.attack import purpose_edits  # noqa: F401, it fills CASES
from benchmarks.attack.purpose_loops import CASES, Classifier, Loop, Transformer
from benchmarks.results import publish, table
from trimtab.journal import RunDirectory, read_journal

MOST_LINES = 100_000
"""Of the log of a run; none has a hundredth of it."""
PROTECT_EVERY = 4
"""One in so many cases is also run in `protect`. Chosen: its gate is the same as in `recover`."""
_CERTAIN = re.compile(r"(?<!not )(?<!how )\bcertain(ly)?\b", re.IGNORECASE)
_START_AGAIN = re.compile(r"\bstart(s|ed)? again\b|\binitial weights\b", re.IGNORECASE)
_UNDO = r".*\bundo(?!ne| outcome).*"
"""Kinds of events that undo something: not `undo outcome`, not `harm not undone`."""
_ORDINARY = {"optimizer promoted", "gate armed", "incident"}
"""Events that are no acts on the run."""


_IN_FORCE = {True: "yes", False: "nor bare", None: "-"}


class Flip(Transformer):
    """Not on purpose: a bit of a weight flips past torch, as hardware does it."""

    at = (150,)

    def edit(self) -> None:
        weight = self.model.blocks[0].attention.value.weight
        weight.detach().numpy().view(np.uint32)[3, 3] ^= np.uint32(1 << 28)


CONTROLS: dict[str, type[Loop]] = {
    "nothing, transformer": Transformer,
    "nothing, classifier": Classifier,
    "a flipped bit": Flip,
}
"""Loops without an edit, and one with a fault: they show what the cases are measured against."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a case in one mode."""

    name: str
    mode: str
    final_loss: float
    """Mean of the last 20 steps."""
    in_force: bool | None
    """Whether the edit stayed; None if it leaves nothing to look for. Training may take it back."""
    undone: int = 0
    """Events of the journal that undo something."""
    certain: tuple[str, ...] = ()
    """What was said to be certain, in logs, journal and report."""
    start_again: tuple[str, ...] = ()
    """Where the report tells the user to start again, or sends them to the initial weights."""
    acts: tuple[tuple[str, int], ...] = ()
    """Kinds of events that are acts on the run or remarks about it, and how often."""
    incidents: tuple[str, ...] = ()
    """The incidents of the report, each with its first step and its instruction."""
    failures: tuple[str, ...] = ()
    """Errors that trimtab logged about itself."""


def run_case(name: str, mode: str) -> Outcome:
    """Train a case, or a control, in one mode; all ranks of it."""
    loop = (CASES | CONTROLS)[name]
    with tempfile.TemporaryDirectory() as folder:
        if loop.ranks == 1:
            return _train(0, name, mode, folder)
        outcomes: list[Outcome] = run_ranks(_train, loop.ranks, name, mode, folder, deadline=120)
        return replace(outcomes[0], in_force=all(one.in_force for one in outcomes))


def _train(rank: int, name: str, mode: str, folder: str) -> Outcome:
    torch.set_num_threads(1)
    run = (CASES | CONTROLS)[name]()
    if mode == "bare":
        run.train(None)
        return Outcome(name=name, mode=mode, final_loss=_final(run), in_force=run.holds())
    with (
        _logged() as logs,
        trimtab.watch(run.model, run.optimizer, run_dir=folder, mode=mode) as guard,
    ):
        run.train(guard)
    outcome = Outcome(name=name, mode=mode, final_loss=_final(run), in_force=run.holds())
    return _judge(outcome, Path(folder), logs) if rank == 0 else outcome


def _final(run: Loop) -> float:
    return sum(run.losses[-20:]) / 20


def _judge(outcome: Outcome, folder: Path, logs: Sequence[logging.LogRecord]) -> Outcome:
    """Add what trimtab did and said."""
    events = read_journal(RunDirectory(folder)).block.events
    report = trimtab.diagnose(folder)
    kinds = Counter(event.kind for event in events)
    live = [record.getMessage() for record in logs]
    live += [json.dumps(dict(event.facts), default=str) for event in events]
    written = [one.action.instruction for one in report.incidents]
    written += [report.verdict, *report.to_markdown().splitlines()]
    return replace(
        outcome,
        undone=sum(n for kind, n in kinds.items() if re.fullmatch(_UNDO, kind)),
        certain=_matching(_CERTAIN, [*live, *written]),
        start_again=_matching(_START_AGAIN, written),
        acts=tuple(sorted((k, n) for k, n in kinds.items() if k not in _ORDINARY)),
        incidents=tuple(
            f"step {one.incident.onset.step}: {one.action.instruction}" for one in report.incidents
        ),
        failures=tuple(r.getMessage() for r in logs if r.levelno >= logging.ERROR),
    )


def _matching(pattern: re.Pattern[str], said: Sequence[str]) -> tuple[str, ...]:
    """What is said around each match, without repetitions."""
    found = [
        text[max(match.start() - 60, 0) : match.end() + 40]
        for text in said
        for match in pattern.finditer(text)
    ]
    return tuple(dict.fromkeys(found))


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """Collect what trimtab logs for its users, and keep it from the console."""
    handler = BufferingHandler(MOST_LINES)
    logger = logging.getLogger("trimtab")
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


def modes_of(name: str) -> tuple[str, ...]:
    """The modes that a case is run in besides the bare one."""
    sampled = name in CASES and list(CASES).index(name) % PROTECT_EVERY == 0
    return ("recover", "protect") if sampled else ("recover",)


def summary(outcomes: Sequence[Outcome], bare: dict[str, Outcome]) -> str:
    """The figures of all cases in a line."""
    lost = {one.name for one in outcomes if _is_lost(one, bare[one.name])}
    return (
        f"{len({one.name for one in outcomes})} purposeful edits: "
        f"undone {_count(outcomes, 'undone')}, certain {_count(outcomes, 'certain')}, "
        f"start again {_count(outcomes, 'start_again')}, no longer in force {len(lost)}"
    )


def _count(outcomes: Sequence[Outcome], field: str) -> int:
    """Count the cases, whatever the mode, that have something of a kind."""
    return len({one.name for one in outcomes if getattr(one, field)})


def _is_lost(watched: Outcome, bare: Outcome) -> bool:
    """Whether an edit that stays in a bare run does not stay in a watched one."""
    return bare.in_force is True and not watched.in_force


def row(watched: Outcome, bare: Outcome) -> list[object]:
    """A line of the table."""
    acts = ", ".join(f"{count} x {kind}" for kind, count in watched.acts)
    return [
        watched.name,
        watched.mode,
        watched.undone or "no",
        "YES" if watched.certain else "no",
        "YES" if watched.start_again else "no",
        "LOST" if _is_lost(watched, bare) else _IN_FORCE[watched.in_force],
        acts or "-",
        f"{watched.final_loss:.3f} / {bare.final_loss:.3f}",
        len(watched.incidents),
        len(watched.failures) or "",
    ]


HEADER = (
    *("on purpose", "mode", "undone", "certain", "start again", "in force"),
    *("acts", "loss / bare", "incidents", "errors"),
)


def main() -> None:
    """Run all cases, or those named, and publish them if it was all."""
    names = sys.argv[1:] or [*CASES, *CONTROLS]
    bare: dict[str, Outcome] = {}
    watched: list[Outcome] = []
    for name in names:
        bare[name] = run_case(name, "bare")
        for mode in modes_of(name):
            outcome = run_case(name, mode)
            watched.append(outcome)
            print(*row(outcome, bare[name]), sep=" | ", flush=True)
            details = (outcome.certain, outcome.incidents, outcome.failures)
            for one in (one for some in details for one in some):
                print("   ", one, flush=True)
    cases = [one for one in watched if one.name in CASES]
    controls = [one for one in watched if one.name in CONTROLS]
    line = summary(cases, bare)
    body = [
        (__doc__ or "").split("\n\n", 1)[1].strip().replace("\n", " "),
        f"{line}.",
        "Without an edit, and with a fault instead of one:",
        table(HEADER, [row(one, bare[one.name]) for one in controls]),
    ]
    counts = ", ".join(str(_count(cases, one)) for one in ("undone", "certain", "start_again"))
    headline = ("edits on purpose: undone, certain, start again", counts, "0, 0, 0")
    command, text = "scripts/bench attack purpose", "\n\n".join(body)
    publish("Purposeful edits", command, text, [headline], is_dry=bool(sys.argv[1:]))


if __name__ == "__main__":
    main()
