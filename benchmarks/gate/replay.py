"""Replay: the rule's decisions over a stream of loss and gradient norm."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from trimtab.core.config import GateConfig
from trimtab.live.protect.rule import Rule


@dataclass(frozen=True)
class Outcome:
    """What was decided about a step."""

    discarded: bool
    shrink: float
    """What the gradients are divided by; 1 if nothing is done to them."""
    lets_through: bool = False
    """Whether the step is one of too many odd ones in a row."""


def make_rule(**settings: object) -> Rule:
    return Rule(GateConfig(**settings), torch.device("cpu"))  # type: ignore[arg-type]


def head(loss: float, norm: float, tokens: float = 100.0) -> torch.Tensor:
    """A step's numbers as they come from the ranks."""
    finite = loss * tokens if math.isfinite(loss) else 0.0
    nan, inf = float(math.isnan(loss)), float(math.isinf(loss))
    return torch.tensor([finite, tokens, nan, inf, norm, 1.0, 0.0, 0.0], dtype=torch.float32)


def decide(rule: Rule, loss: float, norm: float) -> Outcome:
    """Let the rule judge one step and learn from it."""
    verdict = rule.judge(head(loss, norm))
    rule.learn(verdict)
    shrink = float(verdict.shrink)
    return Outcome(bool(verdict.discards), shrink, bool(verdict.lets_through))


def run_rule(rule: Rule, stream: Iterable[tuple[float, float]]) -> list[Outcome]:
    """Let the rule decide about each (loss, norm) of a stream."""
    return [decide(rule, loss, norm) for loss, norm in stream]
