"""Decisions computed again from what the runs wrote, in a process of its own."""

from dataclasses import dataclass
from pathlib import Path

from trimtab.decide.ladder import read_decisions, recompute
from trimtab.journal import RunDirectory, read_journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What computing again has found, over all runs."""

    runs: int
    decisions: int
    different: int
    """Decisions that their situations do not give."""
    not_in_journal: int
    """Decisions that the journal of the run does not have as an event at the same step."""


def compute_again(folder: Path) -> Again:
    """Compute every decision of the runs below a folder again."""
    runs = decisions = different = not_in_journal = 0
    for path in sorted(folder.glob("*/trimtab")):
        run = RunDirectory(path.parent)
        count, mismatches = recompute(run.decisions)
        events = [e for e in read_journal(run).block.events if e.kind == "decision"]
        journalled = [(event.step, dict(event.facts)["act"]) for event in events]
        written = [(situation.step, act.value) for situation, act in read_decisions(run.decisions)]
        runs, decisions = runs + 1, decisions + count
        different += len(mismatches)
        not_in_journal += sum(pair not in journalled for pair in written)
        not_in_journal += abs(len(journalled) - len(written))
    return Again(runs=runs, decisions=decisions, different=different, not_in_journal=not_in_journal)
