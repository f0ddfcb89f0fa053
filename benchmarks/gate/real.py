"""Real runs: how often the gate acts on a healthy step, and what it does to a real spike."""

from collections.abc import Sequence

import numpy as np

from benchmarks.gate.replay import Outcome, make_rule, run_rule
from benchmarks.real_runs import RealRun, real_runs
from benchmarks.results import table

BLOOM_LOSS = (0.022, 0.396, 0.043, 0.146, 2.899, 1.293, 1.014, 0.606)
BLOOM_NORM = (3.91, 9.88, 65.6, 600.0, 3968.0, 1460.0, 1567.0, 2687.0)
"""What the first spike of BLOOM-176B added to the loss, and by what it multiplied the gradient
norm. Source: its training chronicles, 12 April 2022, iterations 31215 to 31222."""


def with_bloom(
    stream: Sequence[tuple[float, float]], at: int
) -> tuple[list[tuple[float, float]], range]:
    """The stream with BLOOM's spike put onto it, and the steps that it covers."""
    changed = list(stream)
    for offset, (more, times) in enumerate(zip(BLOOM_LOSS, BLOOM_NORM, strict=True)):
        loss, norm = changed[at + offset]
        changed[at + offset] = (loss + more, norm * times)
    return changed, range(at, at + len(BLOOM_LOSS))


def steps_of(run: RealRun) -> list[tuple[float, float]]:
    """Loss and gradient norm of each logged step."""
    loss, norm = (run.block.column(name).values for name in ("loss", "grad_norm"))
    return list(zip(loss.tolist(), norm.tolist(), strict=True))


def healthy_runs() -> list[RealRun]:
    """The healthy real runs that have a gradient norm."""
    return [r for r in real_runs() if r.label == "healthy" and r.block.column("grad_norm").recorded]


def spikes(runs: Sequence[RealRun], count: int, seed: int = 0) -> list[list[str]]:
    """BLOOM's spike at `count` random places of each run; what was done to each of its steps."""
    dice = np.random.default_rng(seed)
    found = []
    for run in runs:
        steps = steps_of(run)
        for at in dice.integers(1000, len(steps) - 20, count):
            stream, spike = with_bloom(steps[at - 300 : at + 20], 300)
            outcomes = run_rule(make_rule(), stream)
            found.append([_action(outcomes[number]) for number in spike])
    return found


def report(runs: Sequence[RealRun]) -> str:
    """What is done to every healthy public run, and to the spike."""
    rows: list[list[object]] = []
    for run in runs:
        outcomes = run_rule(make_rule(), steps_of(run))
        actions = [_action(outcome) for outcome in outcomes]
        stride = "every step" if run.is_every_step else "strided"
        counts = (len(actions), actions.count("discarded"), actions.count("scaled"))
        rows.append([run.name, run.split, stride, *counts])
    steps, discards, scaled = (sum(int(str(row[place])) for row in rows) for place in (3, 4, 5))
    rate = f"{discards} ({1e4 * discards / steps:.2f} in 10,000)"
    rows.append(["together", "", "", steps, rate, scaled])
    every_step = [run for run in runs if run.is_every_step]
    caught = np.array(spikes(every_step, 25))
    shares = [
        [action, *(f"{100 * share:.0f} %" for share in (caught == action).mean(axis=0))]
        for action in ("discarded", "scaled")
    ]
    either = (caught != "taken").mean(axis=0)
    shares.append(["either", *(f"{100 * share:.0f} %" for share in either)])
    header = ("run", "split", "logged", "steps", "discarded", "scaled")
    return (
        'The rule of `mode="protect"` with its defaults, replayed over every healthy public run '
        "that has a gradient norm (bar: 1 discard in 10,000 steps). The thresholds have their "
        "sources in GateConfig. Not all are blind to these runs: `norm_sigmas` and `min_history` "
        "were set by runs of the lab and checked here, and windows of 160 and 192 steps were left "
        "because the spike's second step was caught less often (83 %).\n\n"
        + table(header, rows)
        + f"\n\nThe first spike of BLOOM-176B put onto {len(caught)} random places of the runs "
        "logged at every step: what is done to each of its steps (bar: 95 % either from the second "
        "step on).\n\n" + table(["", *(f"step {n + 1}" for n in range(len(BLOOM_LOSS)))], shares)
    )


def _action(outcome: Outcome) -> str:
    if outcome.discarded:
        return "discarded"
    return "scaled" if outcome.shrink > 1 else "taken"
