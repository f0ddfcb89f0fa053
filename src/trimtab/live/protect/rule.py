"""Rule: whether a step is so far from the usual that it must not reach the weights.

Tensors from end to end: the host neither reads nor waits. Not finite is always out. A finite step
is out if the gradient norm, or the loss, or both together leave the usual by so much that it
happens less than once in 10,000 healthy steps (GateConfig has the thresholds and their origin).

A yes or no is a tensor of one element. `a > b` between two of them reads "a and not b", in one
operation instead of two.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.core.config import GateConfig
from trimtab.core.errors import ConfigError
from trimtab.live.protect.baseline import Baseline
from trimtab.live.protect.budget import Budget

_ANY = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the rule thinks of a step; every field is a tensor on the device."""

    discards: torch.Tensor
    step: torch.Tensor
    """The step as Baseline wants it: loss, loss, log norm, log norm."""
    hits: torch.Tensor
    """Which of the tests found the step odd, in the order of REASONS."""
    turned_down: torch.Tensor
    """Whether the step is odd, and the budget has room for it."""
    forget: torch.Tensor
    """Whether the step is odd and the budget is spent: then the odd is the new usual."""
    shrink: torch.Tensor | None
    """What the gradient is to be divided by to have the usual norm, 1 if that is not needed; None
    if the user did not ask for it."""


class Rule:
    """Judges each step against the accepted ones before it."""

    def __init__(self, config: GateConfig, device: torch.device) -> None:
        self._clips_excess = config.clip_excess
        self.baseline = Baseline(config, device)
        self._budget = Budget(config, device)
        limits = [
            [_ANY, _ANY, config.norm_sigmas, math.log(config.norm_ratio)],
            [config.loss_sigmas, config.loss_excess, _ANY, _ANY],
            [
                *(config.joint_sigmas, config.loss_excess),
                *(config.joint_sigmas, math.log(config.joint_ratio)),
            ],
        ]
        if config.clip_excess:
            limits.append([_ANY, _ANY, config.excess_sigmas, math.log(config.excess_ratio)])
        self._limits = torch.tensor(limits, device=device)
        self._zeros = torch.zeros(4, device=device)

    def judge(self, head: torch.Tensor) -> Verdict:
        """Look at the sums of a step over all ranks, in the order of Sensors.HEAD."""
        loss, tokens, nan, inf, given, num_given, squares, _ = head.split(1)
        norm = torch.where(num_given > 0, given / num_given, squares.sqrt())
        mean, log_norm = loss / tokens, norm.log()
        # A step without tokens or gradients has NaN or -inf here, and enters nothing.
        step = torch.cat((mean, mean, log_norm, log_norm))
        is_finite = (norm < math.inf) > (nan + inf)
        deviations = self.baseline.deviations(step)
        hits = (deviations >= self._limits).all(dim=1)
        is_odd = hits.any(dim=0, keepdim=True) & is_finite
        is_spent = self._budget.is_spent()
        turned_down = is_odd > is_spent
        discards, shrink = turned_down, None
        if self._clips_excess:
            discards = turned_down & hits[:-1].any(dim=0, keepdim=True)
            shrink = torch.where(turned_down > discards, deviations[3:].exp(), 1.0)
        return Verdict(
            discards=discards >= is_finite,  # or not finite
            step=step,
            hits=hits,
            turned_down=turned_down,
            forget=is_odd & is_spent,
            shrink=shrink,
        )

    def learn(self, verdict: Verdict, was_kept_out: torch.Tensor) -> None:
        """All ranks have agreed on the step: remember it accordingly."""
        is_known = torch.dot(verdict.step, self._zeros) == 0  # NaN if any of them is not finite
        enters = (is_known > was_kept_out) > verdict.turned_down
        self.baseline.take(verdict.step, enters, verdict.forget)
        self._budget.take(verdict.turned_down)

    def state_dict(self) -> dict[str, Any]:
        """All that the next decision depends on."""
        return {"baseline": self.baseline.state_dict(), "budget": self._budget.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        try:
            self.baseline.load_state_dict(state["baseline"])
            self._budget.load_state_dict(state["budget"])
        except (KeyError, RuntimeError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the guard's saved state does not fit ({error}); it may be of another version or "
                "another gate.window: leave it out, and the gate learns anew"
            ) from error
