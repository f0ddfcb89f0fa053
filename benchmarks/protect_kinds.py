"""Every fault of the lab in a protected run: the gate must not discard finite steps for ever, and
every run must reach its end."""

import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import publish, table
from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.config import Mode
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.scenarios.catalogue import FAULTS
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.scenarios.suite import run_trial
from trimtab.live.protect.rule import THRESHOLDS

STEPS = 240
SEED = 1


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)  # every discard logs a warning
    limit = THRESHOLDS.max_consecutive_discards
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        for kind in FAULTS:
            scenario = Scenario(kind=kind, seed=SEED, steps=STEPS, mode=Mode.PROTECT)
            run = read_journal(RunDirectory(run_trial(scenario, Path(name)))).block
            rows.append([kind, *row_of(run), "yes" if is_fine(run, limit) else "NO"])
            print(rows[-1], file=sys.stderr, flush=True)
    body = (
        f"Every fault kind once, severe, {STEPS} steps, seed {SEED}. Finite steps may be discarded "
        f"{limit} in a row before the gate lets them through; other steps (NaN, inf) are "
        "never applied, however many there are.\n\n"
        + table(
            [
                *("fault", "steps", "finite discarded", "longest row", "let through"),
                *("not finite discarded", "fine"),
            ],
            rows,
        )
    )
    publish("Protection of every fault", "scripts/bench protect_kinds", body)


def row_of(run: Block) -> list[object]:
    """Steps, finite discards, their longest row, rows let through, non-finite discards."""
    finite, other = _discarded(run)
    let_through = sum(event.kind == "gate lets steps through" for event in run.events)
    return [len(run), int(finite.sum()), _longest(finite), let_through, int(other.sum())]


def is_fine(run: Block, max_consecutive_discards: int) -> bool:
    """Whether the run reached its end within the limit of consecutive discards."""
    return len(run) >= STEPS and _longest(_discarded(run)[0]) <= max_consecutive_discards


def _discarded(run: Block) -> tuple[np.ndarray, np.ndarray]:
    """The discarded steps: finite ones, and non-finite ones."""
    column = run.column(signals.DISCARDED)
    discarded = column.present & (column.values > 0)
    numbers = [run.column(name) for name in (signals.LOSS, signals.GRAD_NORM)]
    finite = np.all([number.finite for number in numbers], axis=0)
    return discarded & finite, discarded & ~finite


def _longest(marks: np.ndarray) -> int:
    """The longest row of true values."""
    longest = current = 0
    for mark in marks.tolist():
        current = current + 1 if mark else 0
        longest = max(longest, current)
    return longest


if __name__ == "__main__":
    main()
