"""Made-up streams of loss and gradient norm, and a rule on the host to compare with."""

import math

import numpy as np
from tests.kit.gate_rule import Outcome

from trimtab.core.robust import SIGMA
from trimtab.live.protect.baseline import (
    LOSS_FLOOR,
    LOSS_ZERO,
    NORM_FLOOR,
    ONE_OF_TWO,
    REFRESH_STEPS,
    SIZE_SIGMAS,
)
from trimtab.live.protect.rule import GateThresholds


class HostRule:
    """The same rule in plain lists and floats, written from its description."""

    def __init__(self, config: GateThresholds) -> None:
        self.config = config
        self.ring: list[tuple[float, float]] = []
        self.place = 0
        self.usual = self.sigma = (math.nan, math.nan)
        self.size = math.nan
        self.known = 0
        self.steps = 0
        self.odd_in_row = 0
        self.discards = self.scaled = self.extreme = 0.0

    def decide(self, loss: float, norm: float) -> Outcome:
        """Judge a step and learn from it."""
        config = self.config
        is_known = math.isfinite(loss) and math.isfinite(norm) and norm > 0
        odd, large, huge, ratio = self._look(loss, norm) if is_known else (False, False, False, 1.0)
        acts = self.odd_in_row < config.max_consecutive_discards
        excess = large and acts and self.scaled <= config.max_scaled - 1
        extreme = huge and acts and self.extreme <= config.max_extreme_scaled - 1
        accident = odd and large and acts and self.discards <= config.max_discards - 1
        self.scaled = self.scaled * (1 - 1 / config.scale_memory_steps) + excess
        self.extreme = self.extreme * (1 - 1 / config.scale_memory_steps) + extreme
        self.discards = self.discards * (1 - 1 / config.discard_memory_steps) + accident
        self.odd_in_row = self.odd_in_row + 1 if odd else 0
        self._learn((loss, math.log(norm)) if is_known else None)
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        return Outcome(
            discarded=accident or not is_finite,
            shrink=ratio if excess or extreme else 1.0,
            lets_through=odd and not acts,
        )

    def _look(self, loss: float, norm: float) -> tuple[bool, bool, bool, float]:
        config = self.config
        if self.known < config.min_history_extreme:
            return False, False, False, 1.0
        more, off = loss - self.usual[0], math.log(norm) - self.usual[1]
        in_sigmas = off / self.sigma[1]
        huge = in_sigmas >= config.norm_sigmas and off >= math.log(config.extreme_norm_ratio)
        if self.known < config.min_history:
            return False, False, huge, math.exp(off)
        odd = (
            min(more / self.sigma[0], in_sigmas) >= config.loss_sigmas
            and more >= config.loss_excess * self.size
            and off >= math.log(config.odd_norm_ratio)
        )
        large = (
            in_sigmas >= config.norm_sigmas
            and off >= math.log(config.norm_ratio)
            and off >= config.norm_explained_by_loss * more / self.size
        )
        return odd, large, huge, math.exp(off)

    def _learn(self, step: tuple[float, float] | None) -> None:
        if step is not None:
            self.ring[self.place : self.place + 1] = [step]
            self.place = (self.place + 1) % self.config.window
        self.steps += 1
        if self.steps % REFRESH_STEPS == 0 and self.ring:
            self._refresh(is_place_free=step is None)

    def _refresh(self, *, is_place_free: bool) -> None:
        values = np.full((self.config.window, 2), math.inf)
        values[: len(self.ring)] = self.ring
        if is_place_free:  # overwritten by a step that does not count
            values[self.place] = math.inf
        counts = np.isfinite(values[:, 0])
        self.known = int(counts.sum())
        middle = self.known // 2
        usual = np.sort(values, axis=0)[middle]
        spread = SIGMA * np.sort(abs(values - usual), axis=0)[middle]
        losses = values[:, 0]
        follows = counts & np.roll(counts, 1)
        apart = sorted(abs(losses[follows] - np.roll(losses, 1)[follows]))
        noise = SIGMA * ONE_OF_TWO * apart[middle] if middle < len(apart) else math.inf
        self.usual = (float(usual[0]), float(usual[1]))
        floor = LOSS_ZERO + LOSS_FLOOR * abs(self.usual[0])
        self.sigma = (
            max(float(min(spread[0], noise)), floor),
            max(float(spread[1]), NORM_FLOOR),
        )
        self.size = max(abs(self.usual[0]), SIZE_SIGMAS * max(float(spread[0]), floor))


def healthy(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """A falling loss and a wandering norm, with the heavy tails that real ones have."""
    generator = np.random.default_rng(seed)
    loss = 3.0 * (1 + np.arange(count)) ** -0.05 + 0.03 * generator.standard_t(5, count)
    norm = 0.3 * np.exp(0.1 * generator.standard_t(4, count))
    return list(zip(loss.tolist(), norm.tolist(), strict=True))
