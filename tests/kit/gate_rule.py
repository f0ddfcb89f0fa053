"""The rule of the gate, replayed over streams of loss and gradient norm."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.kit.public_runs import RealRun, real_runs
from trimtab.live.arithmetic import HostMath, Math
from trimtab.live.protect.rule import GateThresholds, Rule


@dataclass(frozen=True)
class Outcome:
    """What was decided about a step."""

    discarded: bool
    shrink: float
    """What the gradients are divided by; 1 if nothing is done to them."""
    lets_through: bool = False
    """Whether the step is one of too many odd ones in a row."""


def make_rule(arithmetic: Math | None = None, **thresholds: Any) -> Rule:
    """The rule on a host, or with the arithmetic of a device."""
    return Rule(arithmetic or HostMath(), GateThresholds(**thresholds))


def head(loss: float, norm: float, tokens: float = 100.0) -> list[float]:
    """A step's numbers as they come from the ranks."""
    finite = loss * tokens if math.isfinite(loss) else 0.0
    nan, inf = float(math.isnan(loss)), float(math.isinf(loss))
    return [float(finite), tokens, nan, inf, float(norm), 1.0, 0.0, 0.0]


def decide(rule: Rule, loss: float, norm: float) -> Outcome:
    numbers = head(loss, norm)
    on_device = torch.tensor(numbers, dtype=torch.float32)
    verdict = rule.judge(numbers if rule.arithmetic.is_host else on_device)
    rule.learn(verdict)
    shrink = float(verdict.shrink)
    return Outcome(bool(verdict.discards), shrink, bool(verdict.lets_through))


def run_rule(rule: Rule, stream: Iterable[tuple[float, float]]) -> list[Outcome]:
    """Let the rule decide about each (loss, norm) of a stream."""
    return [decide(rule, loss, norm) for loss, norm in stream]


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
            found.append([action_of(outcomes[number]) for number in spike])
    return found


def action_of(outcome: Outcome) -> str:
    if outcome.discarded:
        return "discarded"
    return "scaled" if outcome.shrink > 1 else "taken"
