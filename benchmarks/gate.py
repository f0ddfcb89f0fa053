"""What the gate of `protect` does to runs that are healthy, and to a spike: `scripts/bench gate`.

The rule is replayed over recorded losses and gradient norms: those of public runs, those of public
runs with the spike of BLOOM-176B put onto them, and those of the healthy kinds that
`scripts/bench judge generate` has trained.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.kit.gate_rule import (
    BLOOM_LOSS,
    action_of,
    healthy_runs,
    make_rule,
    run_rule,
    spikes,
    steps_of,
)
from tests.kit.public_runs import RUNS, SPLITS, RealRun

from benchmarks.judge.worlds import World, healthy_worlds, is_recorded, records_of
from benchmarks.results import Headline, publish, table
from benchmarks.zoo.records import cache_folder
from trimtab.core.signals import GRAD_NORM, LOSS

SEEDS = 5
"""Seeds of each kind, as `scripts/bench judge` has them."""


def public_section(runs: Sequence[RealRun]) -> tuple[str, list[Headline]]:
    """What is done to every healthy public run, and to the spike."""
    rows: list[list[object]] = []
    for split in SPLITS:
        chosen = [run for run in runs if run.split == split]
        actions = [
            action_of(outcome) for run in chosen for outcome in run_rule(make_rule(), steps_of(run))
        ]
        counts = (len(actions), actions.count("discarded"), actions.count("scaled"))
        rows.append([split, len(chosen), "", *counts])
    steps, discards, scaled = (sum(int(str(row[place])) for row in rows) for place in (3, 4, 5))
    rate = f"{discards} ({1e4 * discards / steps:.2f} in 10,000)"
    rows.append(["together", len(runs), "", steps, rate, scaled])
    every_step = [run for run in runs if run.is_every_step]
    caught = np.array(spikes(every_step, 25))
    shares = [
        [action, *(f"{100 * share:.0f} %" for share in (caught == action).mean(axis=0))]
        for action in ("discarded", "scaled")
    ]
    either = (caught != "taken").mean(axis=0)
    shares.append(["either", *(f"{100 * share:.0f} %" for share in either)])
    text = (
        'The rule of `mode="protect"` with its defaults, replayed over every healthy public run '
        "that has a gradient norm. The thresholds have their sources in GateThresholds. Not all "
        "are blind to these runs: `norm_sigmas` and `min_history` were set by runs of the lab and "
        "checked here, and windows of 160 and 192 steps were left because the spike's second step "
        "was caught less often (83 %).\n\n"
        + table(("split", "runs", "", "steps", "discarded", "scaled"), rows)
        + f"\n\nThe first spike of BLOOM-176B put onto {len(caught)} random places of the runs "
        "logged at every step: what is done to each of its steps.\n\n"
        + table(["", *(f"step {n + 1}" for n in range(len(BLOOM_LOSS)))], shares)
    )
    return text, [
        (f"healthy steps of public runs discarded, of {steps:,}", discards, "1 in 10,000"),
        (
            "BLOOM's spike: steps from the second on that are discarded or scaled",
            f"{100 * min(either[1:]):.0f} %",
            "95 %",
        ),
    ]


def kinds_section(worlds: Sequence[World], folder: Path) -> tuple[str, list[Headline]]:
    """What is done to the healthy runs of many kinds."""
    rows: list[list[object]] = []
    touched: dict[str, int] = {}
    steps = discards = 0
    for half in ("tune", "report"):
        found = [(one, _actions(one, folder)) for one in worlds if one.half == half]
        number = sum(len(actions) for _, actions in found)
        discarded = [actions.count("discarded") for _, actions in found]
        scaled = sum(actions.count("scaled") for _, actions in found)
        rate = f"{1e4 * sum(discarded) / max(number, 1):.2f}"
        most = max(discarded, default=0)
        rows.append([half, len(found), f"{number:,}", sum(discarded), rate, most, scaled])
        steps, discards = steps + number, discards + sum(discarded)
        for (world, _), count in zip(found, discarded, strict=True):
            touched[world.kind] = touched.get(world.kind, 0) + count
    named = ", ".join(f"{kind} {count}" for kind, count in touched.items() if count)
    header = ("half", "runs", "steps", "discarded", "in 10,000", "most in one run", "scaled")
    text = (
        "The same rule over small healthy runs of many kinds that are unlike pretraining. Kinds "
        "are cut into halves by a hash of their names: thresholds were chosen with one half, the "
        "other only reports. Bars: 1 discard in 10,000 steps, 10 in any run.\n\n"
        f"{table(header, rows)}\n\nDiscarded, by kind: {named or 'none'}."
    )
    return text, [(f"steps of healthy kinds discarded, of {steps:,}", discards, "1 in 10,000")]


def _actions(world: World, folder: Path) -> list[str]:
    block = records_of(world, folder)
    stream = zip(block.column(LOSS).values, block.column(GRAD_NORM).values, strict=True)
    return [action_of(outcome) for outcome in run_rule(make_rule(), stream)]


def main() -> None:
    """Replay over what is there, and publish."""
    if RUNS.exists():
        publish("The gate on real runs", "scripts/bench gate", *public_section(healthy_runs()))
    folder = cache_folder("judge")
    if worlds := [world for world in healthy_worlds(SEEDS) if is_recorded(world, folder)]:
        publish("The gate on healthy kinds", "scripts/bench gate", *kinds_section(worlds, folder))


if __name__ == "__main__":
    main()
