"""What protection is worth: faults with and without it, beside clean twins (`scripts/bench
lab_protect`).

Each of 20 seeds is trained three times per fault: clean, with the fault while trimtab observes, and
with the fault while it protects. What counts is the mean loss of the 10 steps behind the fault over
that of the clean twin.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import publish, table
from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.config import Mode
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.scenario import Scenario
from trimtab.lab.trial import run_trial

KINDS = {"F02": "rare or repeated tokens", "F12": "0/0 in the loss", "F13": "bit 30 of a gradient"}
SEEDS = range(20)
STEPS = 240
"""Long enough for a baseline of 64 accepted steps in front of the earliest onset, at 100."""

BAR = 0.02
HEALTHY = ("cooldown", "warmup-end", "batch-ramp", "length-change", "mix-switch")


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    seeds = SEEDS[: int(sys.argv[1])] if len(sys.argv) > 1 else SEEDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            row for kind, what in KINDS.items() for row in _fault_rows(kind, what, folder, seeds)
        ]
        discards, steps = _healthy(folder, seeds)
    body = (
        f"{len(seeds)} seeds of both regimes, {STEPS} steps each; severity 1. Excess: mean loss of "
        "the 10 steps behind the end of the fault, minus the clean twin's. Bar: at most +0.02 in "
        "each seed with protection.\n\n"
        + table(["fault", "mode", "median excess", "worst", "seeds in 0.02", "discarded"], rows)
        + f"\n\nHealthy and hard-negative runs with protection: {discards} of {steps:,} steps "
        "discarded (bar: 1 in 10,000)."
    )
    publish("Protection in the lab", "scripts/bench lab_protect", body)


def _fault_rows(kind: str, what: str, folder: Path, seeds: Sequence[int]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for mode in (Mode.OBSERVE, Mode.PROTECT):
        excesses, discarded = [], 0
        for seed in seeds:
            scenario = Scenario(kind=kind, seed=seed, steps=STEPS, severity=1.0, mode=mode)
            run = _journal(run_trial(scenario, folder))
            twin = _journal(run_trial(scenario.twin(), folder))
            disturbance = scenario.disturbance()
            assert disturbance is not None
            end = disturbance.end or disturbance.onset + 1
            window = slice(end, end + 10)
            loss, clean = (b.column(signals.LOSS).values[window] for b in (run, twin))
            excesses.append(float(np.mean(loss - clean)))
            discarded += _discards(run)
        within = sum(excess <= BAR for excess in excesses)  # NaN is not within
        known = [excess for excess in excesses if excess == excess]
        rows.append(
            [
                f"{kind} {what}",
                mode,
                f"{statistics.median(known):+.4f}" if known else "NaN",
                "NaN" if len(known) < len(excesses) else f"{max(known):+.4f}",
                f"{within}/{len(excesses)}",
                discarded,
            ]
        )
    return rows


def _healthy(folder: Path, seeds: Sequence[int]) -> tuple[int, int]:
    """Steps discarded, of how many, where nothing is wrong."""
    discarded = steps = 0
    for seed in seeds:
        kind = HEALTHY[seed % len(HEALTHY)]
        scenario = Scenario(kind=kind, seed=seed, steps=STEPS, mode=Mode.PROTECT)
        run = _journal(run_trial(scenario, folder))
        discarded += _discards(run)
        steps += len(run)
    return discarded, steps


def _discards(run: Block) -> int:
    column = run.column(signals.DISCARDED)
    return int((column.values[column.present] > 0).sum())


def _journal(run_dir: Path) -> Block:
    return read_journal(RunDirectory(run_dir)).block


if __name__ == "__main__":
    main()
