"""Measures the judge on reinforcement learning: the faults of `trimtab lab rl`, and clean runs.

scripts/bench rl tune      seeds that rules and evidence were chosen with; printed
scripts/bench rl report    seeds that were not looked at before, and clean runs; published

Runs that are not in the cache are trained: a quarter of a minute each, and up to a minute for those
that take hold slowly. rlwatch and rldoctor judge the same records where they are installed.
"""

import argparse
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from benchmarks.detect.intervals import share_of
from benchmarks.results import Headline, publish, table
from benchmarks.zoo.records import cache_folder, load, save
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.signals import REWARD
from trimtab.judge import Judge
from trimtab.lab.rl.grpo import RL_FAULTS, RlConfig, onset_of, train
from trimtab.lab.scenarios.catalogue import CLEAN

STEPS, SLOW_STEPS = 200, 360
SLOW = frozenset({"R06", "R12"})
"""Faults that a policy has to find out: what pays must first be drawn by chance."""

TUNE, REPORT = (0, 1), (31, 32, 33, 34)
LOOKED_AT = (
    "Seeds 31 to 33 were judged once before the evidence for R05 was changed, on seeds 0 and 1: 34 "
    "of 36 found, all of them early, cause first 30, in three 30. Seed 34 was not."
)
"""What was seen of the seeds of the report before."""

CLEAN_SEEDS = (1, 3, 4, 6, 7, 9)
"""Clean runs of the report; that of seed 0 was looked at."""

BARS = (95, 70, 80, 95)
"""Percent: found, before half of the reward was lost, cause first, in three."""

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
    others: tuple[bool | None, bool | None]
    """Whether rlwatch and rldoctor find it; None where they are not installed."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench rl")
    parser.add_argument("what", choices=("tune", "report"))
    is_report = parser.parse_args().what == "report"
    seeds, clean = (REPORT, CLEAN_SEEDS) if is_report else (TUNE, TUNE)
    faults, headlines = _faults(seeds)
    quiet, of_clean = _clean(clean)
    body = f"{faults}\n\n{quiet}"
    if is_report:
        title, command = "Reinforcement learning in the lab", "scripts/bench rl report"
        publish(title, command, f"{body}\n\n{LOOKED_AT}", [*headlines, of_clean])
    else:
        print(body)


def _faults(seeds: tuple[int, ...]) -> tuple[str, list[Headline]]:
    rows, every = [], []
    for name, fault in RL_FAULTS.items():
        said = [judge(records_of(name, seed), name, seed) for seed in seeds]
        counts = _counts(said)
        if set(counts[1:5]) != {len(said)}:
            rows.append((f"{name} {fault.title}", *counts))
        every += said
    rows.append(("all", *_counts(every)))
    ours = ("found", "before half of the reward", "cause first", "in three")
    header = ("fault", "runs", *ours, "rlwatch", "rldoctor")
    slow = " and ".join(sorted(SLOW))
    text = (
        f"GRPO of a small GPT on sums, {STEPS} steps ({SLOW_STEPS} for {slow}, "
        f"which take hold slowly), one fault from a known step on; seeds {min(seeds)} to "
        f"{max(seeds)}. Bars: found 95 %, before half of the reward was lost 70 %, cause first "
        "80 %, in three 95 %. The last columns are runs in which rlwatch raises an alert from the "
        "onset on, and which rldoctor calls a warning or worse at the end. The other faults are "
        "found and named first in all runs.\n\n" + table(header, rows)
    )
    total, *ours_found, watch, doctor = _counts(every)
    others = _others(watch, doctor, f"of {total}")
    headlines: list[Headline] = [
        (f"RL faults: {what}", share_of(int(count), int(total)), f"{bar} %", others * (not at))
        for at, (what, count, bar) in enumerate(zip(ours, ours_found, BARS, strict=True))
    ]
    return text, headlines


def _counts(said: list[Said]) -> tuple[int | str, ...]:
    return (
        len(said),
        sum(one.is_found for one in said),
        sum(one.is_found and one.is_early for one in said),
        sum(one.place == 0 for one in said),
        sum(one.place is not None and one.place < 3 for one in said),
        *(_tally([one.others[at] for one in said]) for at in (0, 1)),
    )


def _tally(found: list[bool | None]) -> int | str:
    return "not installed" if None in found else sum(map(bool, found))


def _others(watch: int | str, doctor: int | str, of: str) -> str:
    """Return the counts of those that are installed."""
    found = {"rlwatch": watch, "rldoctor": doctor}
    said = [f"{name} {count}" for name, count in found.items() if isinstance(count, int)]
    return f"{', '.join(said)} {of}" if said else ""


def _clean(seeds: tuple[int, ...]) -> tuple[str, Headline]:
    steps = incidents = acts = 0
    others = []
    for seed in seeds:
        block = records_of(CLEAN, seed)
        others.append((rlwatch_finds(block, 0), rldoctor_finds(block)))
        ours = judged(block)
        found = [ours.explain(incident, block) for incident in ours.incidents]
        steps, incidents = steps + len(block), incidents + len(found)
        acts += sum(bool(one.action and one.action.kind is not ActionKind.WAIT) for one in found)
    watch, doctor = (_tally([pair[at] for pair in others]) for at in (0, 1))
    text = (
        f"Clean runs: {len(seeds)}, {steps:,} steps, {incidents} incidents, {acts} with an advice "
        "other than to wait. Bars: 1 in 10,000 steps, none. Runs with an alert of rlwatch: "
        f"{watch}; with a warning of rldoctor: {doctor}."
    )
    theirs = _others(watch, doctor, f"of {len(seeds)} runs")
    return text, (f"incidents in {len(seeds)} clean RL runs", incidents, 0, theirs)


def judged(block: Block) -> Judge:
    ours = Judge()
    ours.update(block)
    ours.finish()
    return ours


def judge(block: Block, name: str, seed: int) -> Said:
    """Judge a run with a fault."""
    onset, ours = onset_of(name, seed, steps_of(name)) + 1, judged(block)
    others = (rlwatch_finds(block, onset), rldoctor_finds(block))
    near = [one for one in ours.incidents if one.onset.step >= onset - SLACK]
    if not near:
        return Said(False, False, None, others)
    ranking = ours.explain(near[0], block).ranking
    causes = [item.cause.id for item in ranking.candidates if item.cause] if ranking else []
    place = causes.index(name) if name in causes else None
    return Said(True, near[0].findings[0].step <= _half_lost(block, onset), place, others)


def rlwatch_finds(block: Block, onset: int) -> bool | None:
    """Return whether rlwatch, at its defaults, raises an alert from a step on."""
    try:
        config, detectors = (import_module(f"rlwatch.{name}") for name in ("config", "detectors"))
    except ImportError:
        return None
    suite = detectors.DetectorSuite(config.RLWatchConfig())
    names = {"kl": "kl_divergence", "reward": "reward_mean"}
    same = ("entropy", "reward_std", "advantage_std", "loss", "grad_norm")
    names |= {name: name for name in same}
    steps = [
        record.step
        for record in block.records()
        if suite.check_step(
            record.step, **{names[n]: value for n, value in record.signals.items() if n in names}
        )
    ]
    return any(step >= onset for step in steps)


def rldoctor_finds(block: Block) -> bool | None:
    """Return whether rldoctor, at its defaults, calls the whole run a warning or worse."""
    try:
        doctor = import_module("rl_doctor")
    except ImportError:
        return None
    # The names of TRL for what it knows by them.
    names = {
        "no_signal_share": "frac_reward_zero_std",
        "response_length": "completions/mean_length",
        "truncated_share": "completions/clipped_ratio",
        "clip_fraction": "clip_ratio/region_mean",
        "eval_reward": "eval/reward",
    }
    records = [
        {"step": one.step, **{names.get(name, name): x for name, x in one.signals.items()}}
        for one in block.records()
    ]
    worst = doctor.diagnose(doctor.run_from_records(records)).worst
    return bool(worst >= doctor.Severity.WARNING)


def _half_lost(block: Block, onset: int) -> float:
    """Return the step at which the mean of 8 rewards was under half of that before the fault."""
    reward = block.column(REWARD).values
    usual = float(np.median(reward[max(onset - 32, 0) : onset - 1]))
    for row in range(onset - 1, len(reward) - 8):
        if reward[row : row + 8].mean() < 0.5 * usual:
            return row + 8
    return float("inf")


def steps_of(name: str) -> int:
    return SLOW_STEPS if name in SLOW else STEPS


def records_of(name: str, seed: int) -> Block:
    """Return the records of a run, trained if they are not in the cache."""
    folder = cache_folder("rl")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{seed}.npz"
    if not path.exists():
        records = train(
            RlConfig.from_seed(seed, steps_of(name)),
            folder,
            fault=None if name == CLEAN else RL_FAULTS[name].plant(seed),
            onset=onset_of(name, seed, steps_of(name)),
            is_watched=False,
        )
        save(path, records)
    return load(path)


if __name__ == "__main__":
    main()
