"""Run directories of a stranger: `scripts/bench attack hostile`.

Each case of tests/kit/hostile.py is tried on all doors: the commands that read, the shipper, a
resume that trains on with checkpoints and retention, and the commands that write. It holds if
nothing outside of the run directory was read, written or deleted, no escape sequence came out, no
door raised anything but an error of trimtab, and each answered within a minute.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.kit.hostile import CASES, DOORS, Place, attack, make_place

from benchmarks.results import Headline, publish, table

COMMAND = "scripts/bench attack hostile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One case, tried on all doors."""

    name: str
    problems: tuple[str, ...]
    seconds: float


def measure() -> list[Attack]:
    """Try every case on a copy of one healthy run."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        healthy = make_place(base / "healthy")
        for name in CASES:
            copy = Place(run=base / "case" / "runs" / "run", outside=base / "case" / "outside")
            shutil.copytree(healthy.run, copy.run)
            shutil.copytree(healthy.outside, copy.outside)
            began = time.monotonic()
            problems = tuple(attack(name, copy))
            found.append(Attack(name=name, problems=problems, seconds=time.monotonic() - began))
            shutil.rmtree(base / "case")
    return found


def report(attacks: Sequence[Attack]) -> tuple[str, list[Headline]]:
    """The section, and its headline."""
    failed = [one for one in attacks if one.problems]
    slowest = max(attacks, key=lambda one: one.seconds)
    body = (
        f"{len(attacks)} run directories, {len(DOORS)} doors each ({', '.join(DOORS)}): links, "
        "pipes, sparse files of a terabyte, names and numbers that no run writes. Slowest: "
        f"{slowest.name!a}, {slowest.seconds:.1f} s for all doors.\n\n"
    )
    rows = [(ascii(one.name), "; ".join(one.problems)) for one in failed]
    headline = (
        "hostile run directories that led to nothing outside",
        f"{len(attacks) - len(failed)} of {len(attacks)}",
        "all",
    )
    return body + (table(("case", "what went wrong"), rows) if rows else ""), [headline]


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    os.environ.setdefault("COLUMNS", "100")
    publish("Hostile run directories", COMMAND, *report(measure()))


if __name__ == "__main__":
    main()
