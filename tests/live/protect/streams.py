"""Made-up streams of loss and gradient norm, and a rule on the host to compare with."""

import math

import numpy as np
from benchmarks.gate import Outcome

from trimtab.core.config import GateConfig
from trimtab.live.protect.baseline import LOSS_FLOOR, NORM_FLOOR, REFRESH_STEPS, TO_SIGMA


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
        spent = (
            self.in_a_row >= self.config.max_consecutive_discards
            or self.recent >= self.config.max_recent_discards
        )
        turned_down = (odd or excess) and not spent
        forget = (odd or excess) and spent
        discarded = not is_finite or (odd and not spent)
        if forget:
            self.last, self.sigmas = [], None
        enters = is_finite and norm > 0 and not turned_down
        self.last.append((np.float32(loss), np.log(np.float32(norm))) if enters else None)
        self.last = self.last[-self.config.window :]
        self.in_a_row = self.in_a_row + 1 if turned_down else 0
        self.recent = self.recent * (1 - 1 / self.config.discard_memory_steps) + turned_down
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
        excess = norm_sigmas >= config.excess_sigmas and norm_off >= math.log(config.excess_ratio)
        return bool(odd), bool(excess and config.clip_excess and not odd), float(np.exp(norm_off))

    def _refresh(self) -> None:
        known = [step for step in self.last if step is not None]
        self.sigmas = None
        if len(known) < self.config.min_history:
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
