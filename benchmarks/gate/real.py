"""Real runs: how often the gate acts on a healthy step, and what it does to a real spike."""

from collections.abc import Sequence

import numpy as np
from tests.kit.gate_rule import BLOOM_LOSS, action_of, make_rule, run_rule, spikes, steps_of
from tests.kit.public_runs import SPLITS, RealRun

from benchmarks.results import Headline, table


def report(runs: Sequence[RealRun]) -> tuple[str, list[Headline]]:
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
