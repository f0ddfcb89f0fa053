"""Measures the judge on reinforcement learning: the faults of `trimtab lab rl`, and clean runs.

scripts/bench rl tune      a seed that rules and evidence were chosen with; printed
scripts/bench rl report    another seed, which was looked at too, and clean runs; published

Runs that are not in the cache are trained: a quarter of a minute each.
"""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.judge.recording import load, save
from benchmarks.results import publish, table
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.signals import REWARD
from trimtab.judge import Judge
from trimtab.lab.rl.grpo import RlConfig, train
from trimtab.lab.rl.rl_faults import RL_FAULTS, onset_of
from trimtab.lab.scenarios.catalogue import CLEAN

STEPS = 200
TUNE, REPORT = (0,), (1,)
CLEAN_SEEDS = (1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22, 24, 25, 27, 28, 30)
"""Clean runs of the report; that of seed 0 was looked at."""

SLACK = 4
"""Records by which an onset may be dated back too far."""


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of one run with a fault."""

    is_found: bool
    is_early: bool
    """Before the reward had lost half, or without that."""
    place: int | None
    """The place of the true cause among the hypotheses, from 0; None if it is not one."""


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="scripts/bench rl")
    parser.add_argument("what", choices=("tune", "report"))
    is_report = parser.parse_args().what == "report"
    seeds, clean = (REPORT, CLEAN_SEEDS) if is_report else (TUNE, TUNE)
    body = _faults(seeds) + "\n\n" + _clean(clean)
    if is_report:
        publish("Reinforcement learning in the lab", "scripts/bench rl report", body)
    else:
        print(body)


def _faults(seeds: tuple[int, ...]) -> str:
    rows, every = [], []
    for name, fault in RL_FAULTS.items():
        said = [judge(records_of(name, seed), name, seed) for seed in seeds]
        rows.append((f"{name} {fault.title}", *_counts(said)))
        every += said
    rows.append(("all", *_counts(every)))
    header = ("fault", "runs", "found", "before half of the reward", "cause first", "in three")
    return (
        f"GRPO of a small GPT on sums, {STEPS} steps, one fault from a known step on. Bars: found "
        "95 %, before half of the reward was lost 70 %, cause first 80 %, in three 95 %.\n\n"
        + table(header, rows)
    )


def _counts(said: list[Said]) -> tuple[int, ...]:
    return (
        len(said),
        sum(one.is_found for one in said),
        sum(one.is_found and one.is_early for one in said),
        sum(one.place == 0 for one in said),
        sum(one.place is not None and one.place < 3 for one in said),
    )


def _clean(seeds: tuple[int, ...]) -> str:
    steps = incidents = acts = 0
    for seed in seeds:
        block = records_of(CLEAN, seed)
        ours = judged(block)
        found = [ours.explain(incident, block) for incident in ours.incidents]
        steps, incidents = steps + len(block), incidents + len(found)
        acts += sum(bool(one.action and one.action.kind is not ActionKind.WAIT) for one in found)
    return (
        f"Clean runs: {len(seeds)}, {steps:,} steps, {incidents} incidents, {acts} with an advice "
        "other than to wait. Bars: 1 in 10,000 steps, none."
    )


def judged(block: Block) -> Judge:
    """Return the judge of a run from its first record to its last."""
    ours = Judge()
    ours.update(block)
    ours.finish()
    return ours


def judge(block: Block, name: str, seed: int) -> Said:
    """Judge a run with a fault."""
    onset, ours = onset_of(name, seed, STEPS) + 1, judged(block)
    near = [one for one in ours.incidents if one.onset.step >= onset - SLACK]
    if not near:
        return Said(False, False, None)
    ranking = ours.explain(near[0], block).ranking
    causes = [item.cause.id for item in ranking.candidates if item.cause] if ranking else []
    place = causes.index(name) if name in causes else None
    return Said(True, near[0].findings[0].step <= _half_lost(block, onset), place)


def _half_lost(block: Block, onset: int) -> float:
    """Return the step at which the mean of 8 rewards was under half of that before the fault."""
    reward = block.column(REWARD).values
    usual = float(np.median(reward[max(onset - 32, 0) : onset - 1]))
    for row in range(onset - 1, len(reward) - 8):
        if reward[row : row + 8].mean() < 0.5 * usual:
            return row + 8
    return float("inf")


def records_of(name: str, seed: int) -> Block:
    """Return the records of a run, trained if they are not in the cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(base) if base else Path.home() / ".cache") / "trimtab" / "rl"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{seed}.npz"
    if not path.exists():
        records = train(
            RlConfig.from_seed(seed, STEPS),
            folder,
            fault=None if name == CLEAN else RL_FAULTS[name].plant(seed),
            onset=onset_of(name, seed, STEPS),
            is_watched=False,
        )
        save(path, records)
    return load(path)


if __name__ == "__main__":
    main()
