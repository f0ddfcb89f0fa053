"""Streams of loss and gradient norm for the rule, and a rule on the host to hold it against."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.core.config import GateConfig
from trimtab.live.protect.baseline import LOSS_FLOOR, NORM_FLOOR, REFRESH_STEPS, TO_SIGMA
from trimtab.live.protect.rule import Rule

BLOOM_LOSS = (0.022, 0.396, 0.043, 0.146, 2.899, 1.293, 1.014, 0.606)
BLOOM_NORM = (3.91, 9.88, 65.6, 600.0, 3968.0, 1460.0, 1567.0, 2687.0)
"""What the first spike of BLOOM-176B added to the loss, and by what it multiplied the gradient
norm. Source: its training chronicles, 12 April 2022, iterations 31215 to 31222."""


@dataclass(frozen=True)
class Outcome:
    """What was decided about a step."""

    discarded: bool
    forgot: bool
    shrink: float


def head(loss: float, norm: float, tokens: float = 100.0) -> torch.Tensor:
    """A step's numbers as they come from the ranks."""
    finite = loss * tokens if math.isfinite(loss) else 0.0
    nan, inf = float(math.isnan(loss)), float(math.isinf(loss))
    return torch.tensor([finite, tokens, nan, inf, norm, 1.0, 0.0, 0.0], dtype=torch.float32)


def run_rule(rule: Rule, stream: Iterable[tuple[float, float]]) -> list[Outcome]:
    """Let the rule decide about each (loss, norm) of a stream."""
    outcomes = []
    for loss, norm in stream:
        verdict = rule.judge(head(loss, norm))
        rule.learn(verdict, verdict.discards)
        shrink = 1.0 if verdict.shrink is None else float(verdict.shrink)
        outcomes.append(Outcome(bool(verdict.discards), bool(verdict.forget), shrink))
    return outcomes


def make_rule(**settings: object) -> Rule:
    return Rule(GateConfig(**settings), torch.device("cpu"))  # type: ignore[arg-type]


class HostRule:
    """The same rule in plain lists and numpy, written from its description."""

    def __init__(self, config: GateConfig) -> None:
        self.config = config
        self.last: list[tuple[np.float32, np.float32] | None] = []
        self.usual = (np.float32(np.nan), np.float32(np.nan))
        self.sigmas: tuple[np.float32, np.float32] | None = None
        self.steps = 0
        self.in_a_row = 0
        self.recent = 0.0

    def decide(self, loss: float, norm: float) -> Outcome:
        """Judge a step and learn from it."""
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        odd, excess, ratio = self._look(loss, norm) if is_finite else (False, False, 1.0)
        spent = self.in_a_row >= self.config.most_in_a_row or self.recent >= self.config.most_recent
        turned_down = (odd or excess) and not spent
        forget = (odd or excess) and spent
        discarded = not is_finite or (odd and not spent)
        if forget:
            self.last, self.sigmas = [], None
        enters = is_finite and norm > 0 and not turned_down
        self.last.append((np.float32(loss), np.log(np.float32(norm))) if enters else None)
        self.last = self.last[-self.config.window :]
        self.in_a_row = self.in_a_row + 1 if turned_down else 0
        self.recent = self.recent * (1 - 1 / self.config.recent_steps) + turned_down
        self.steps += 1
        if self.steps % REFRESH_STEPS == 0:
            self._refresh()
        shrunk = turned_down and not discarded
        return Outcome(discarded, forget, ratio if shrunk else 1.0)

    def _look(self, loss: float, norm: float) -> tuple[bool, bool, float]:
        if self.sigmas is None:
            return False, False, 1.0
        config = self.config
        loss_off = np.float32(loss) - self.usual[0]
        norm_off = np.log(np.float32(norm)) - self.usual[1] if norm > 0 else -np.inf
        loss_sigmas, norm_sigmas = loss_off / self.sigmas[0], norm_off / self.sigmas[1]
        is_loss_large = loss_off / abs(self.usual[0]) >= config.loss_excess
        odd = (
            (norm_sigmas >= config.norm_sigmas and norm_off >= math.log(config.norm_ratio))
            or (loss_sigmas >= config.loss_sigmas and is_loss_large)
            or (
                min(loss_sigmas, norm_sigmas) >= config.joint_sigmas
                and is_loss_large
                and norm_off >= math.log(config.joint_ratio)
            )
        )
        excess = norm_sigmas >= config.norm_sigmas and norm_off >= math.log(config.excess_ratio)
        return bool(odd), bool(excess and config.clip_excess and not odd), float(np.exp(norm_off))

    def _refresh(self) -> None:
        known = [step for step in self.last if step is not None]
        self.sigmas = None
        if len(known) < self.config.least_steps:
            return
        values = np.array(known, dtype=np.float32)
        middle = len(known) // 2
        usual = np.sort(values, axis=0)[middle]
        sigma = np.float32(TO_SIGMA) * np.sort(abs(values - usual), axis=0)[middle]
        self.usual = (usual[0], usual[1])
        floor = np.float32(LOSS_FLOOR) * abs(usual[0])
        self.sigmas = (max(sigma[0], floor), max(sigma[1], np.float32(NORM_FLOOR)))


def healthy(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """A falling loss and a wandering norm, with the heavy tails that real ones have."""
    generator = np.random.default_rng(seed)
    loss = 3.0 * (1 + np.arange(count)) ** -0.05 + 0.03 * generator.standard_t(5, count)
    norm = 0.3 * np.exp(0.1 * generator.standard_t(4, count))
    return list(zip(loss.tolist(), norm.tolist(), strict=True))


def with_bloom(
    stream: Sequence[tuple[float, float]], at: int
) -> tuple[list[tuple[float, float]], range]:
    """The stream with BLOOM's spike put onto it, and the steps that it covers."""
    changed = list(stream)
    for offset, (more, times) in enumerate(zip(BLOOM_LOSS, BLOOM_NORM, strict=True)):
        loss, norm = changed[at + offset]
        changed[at + offset] = (loss + more, norm * times)
    return changed, range(at, at + len(BLOOM_LOSS))
