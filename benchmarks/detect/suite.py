"""Runs of the lab with their truth, as `trimtab lab suite` leaves them.

DIR/F02-severe-seed3/truth.json     what was done to the run, from which step on
DIR/F02-severe-seed3/trimtab/       its journal
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.core.block import Block
from trimtab.core.errors import LabError
from trimtab.journal import RunDirectory, read_journal


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """One run of the lab."""

    name: str
    kind: str
    grade: str
    split: str
    onset: int | None
    """The first row that the fault touches; none if the run has no fault."""
    twin: str | None
    """The same run with nothing done to it; none if this is such a run."""
    block: Block


def read_suite(folder: Path) -> list[LabRun]:
    """Every finished run in a folder."""
    runs = [_read(path) for path in sorted(folder.glob("*/truth.json"))]
    if not runs:
        raise LabError(f"{folder} holds no run with a truth.json; build one: trimtab lab suite")
    return runs


def _read(path: Path) -> LabRun:
    truth = json.loads(path.read_text(encoding="utf-8"))
    block = read_journal(RunDirectory(path.parent)).block
    onset = int(np.argmax(block.step >= truth["onset"])) if truth["is_fault"] else None
    return LabRun(
        name=path.parent.name,
        kind=truth["kind"],
        grade=truth["grade"] or "",
        split=truth["setting"]["split"],
        onset=onset,
        twin=truth["twin"],
        block=block,
    )
