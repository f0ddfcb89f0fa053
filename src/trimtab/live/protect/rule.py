"""Rule: what happens to a step before the update. Tensors only: the host neither reads nor waits.

    not finite                                              discarded, always
    accident   norm far above the usual and not explained
               by the loss, and the loss above it too       discarded      few over the whole run
    excess     norm far above the usual and not explained
               by the loss                                  scaled down    a few at a time
    extreme    norm 100 times the usual, whatever the loss  scaled down    a few at a time
    odd        loss and norm both above the usual           counted

A larger loss explains a larger gradient. Where the loss rises with the norm, the batch is hard, or
rare, or the weights are damaged: such a step has to be learnt from, and is not touched. A norm that
the loss does not explain comes from broken data or a broken device. Nothing is withheld by the loss
alone. After a few odd steps in a row nothing finite is touched: they are no accident.

Each test is a row of conditions, each condition a linear function of loss, log norm and the
counters that must not be negative. So all of them are one product of a matrix and a vector.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.core.config import GateConfig
from trimtab.core.errors import ConfigError
from trimtab.live.protect.baseline import Baseline
from trimtab.live.protect.budget import ACCIDENT, EXCESS, Budget
from trimtab.live.protect.conditions import LOSS, NUM_INPUTS, Condition, make_tests

LETS_THROUGH = "lets_through"
"""1 if too many steps in a row were odd and the gate touches none of them any
more: the weights are damaged, or the level has moved."""
IS_ARMED = "is_armed"
"""1 once finite steps can be discarded or scaled down, 0 before."""
USUAL_LOSS = "usual_loss"
USUAL_LOG_NORM = "usual_log_norm"
SCALED_BY = "scaled_by"
"""What the gradients were divided by; 1 if they were not."""

REPORT_NAMES = (LETS_THROUGH, IS_ARMED, USUAL_LOSS, USUAL_LOG_NORM, SCALED_BY)
"""What the rule reports of each step to the host, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the rule decided about a step; every field is a tensor on the device."""

    discards: torch.Tensor
    shrink: torch.Tensor
    """What the gradients are to be divided by; 1 if the step stays as it is."""
    step: torch.Tensor
    """Loss and log norm."""
    hits: torch.Tensor
    """Which tests act, in the order of Budget."""
    is_odd: torch.Tensor
    lets_through: torch.Tensor


class Rule:
    """Judges each step against those before it."""

    def __init__(self, config: GateConfig, device: torch.device) -> None:
        self._min_history = config.min_history
        self.baseline = Baseline(config, device)
        self._budget = Budget(config, device)
        tests = make_tests(config)

        def of_each(get: Callable[[Condition], object]) -> torch.Tensor:
            values = [[get(condition) for condition in test.conditions] for test in tests]
            return torch.tensor(values, dtype=torch.float32, device=device)

        self._weights = of_each(Condition.input_weights)
        self._scale_weights = of_each(Condition.scale_weights)
        self._constants = of_each(lambda condition: condition.constant)
        self._explained = of_each(lambda condition: condition.explained)
        self._min_count = torch.tensor([[test.min_history] for test in tests], device=device)
        self._one = torch.ones(1, dtype=torch.float32, device=device)
        self._nan = torch.full_like(self._one, math.nan)
        self._is_loss = torch.eye(NUM_INPUTS, dtype=torch.float32, device=device)[LOSS]
        self._refresh()

    def judge(self, head: torch.Tensor, *, may_scale: bool = True) -> Verdict:
        """Decide about the sums of a step over all ranks, in the order of Sensors.HEAD.

        A norm that is not that of the gradients as they are now says nothing about how much they
        would have to be scaled: then `may_scale` is False.
        """
        loss, tokens, nan, inf, given, num_given, squares, _ = head.split(1)
        norm = torch.where(num_given > 0, given / num_given, squares.sqrt())
        is_finite = (norm < math.inf) > (nan + inf)  # "and not", in one operation
        # The sum of the loss leaves out what is not finite: NaN says that it is not whole. NaN, or
        # the -inf of a step without gradients, makes conditions NaN, so no test acts.
        mean = torch.where(is_finite, loss / tokens, self._nan)
        inputs = torch.cat((mean, norm.log(), self._budget.spent, self._one))
        # Not `torch.mv`: where the whole loop runs in autocast that would be in half precision.
        hits = ((self._matrix * inputs).sum(dim=2) >= 0).all(dim=1)
        is_odd, is_large, is_accident, lets_through = hits.split((1, ACCIDENT - EXCESS, 1, 1))
        shrink = self._one
        if may_scale:
            shrink = torch.where(is_large.any(), norm * self._inverse_usual, shrink)
        return Verdict(
            discards=is_accident >= is_finite,  # or not finite
            shrink=shrink,
            step=inputs[:2],
            hits=hits,
            is_odd=is_odd,
            lets_through=lets_through,
        )

    def learn(self, verdict: Verdict) -> None:
        """Remember a step that was judged."""
        self._budget.update(verdict.hits, verdict.is_odd)
        if self.baseline.update(verdict.step):
            self._refresh()

    def report(self, verdict: Verdict) -> tuple[torch.Tensor, ...]:
        """The values of REPORT_NAMES, as the step was judged with them."""
        return (verdict.lets_through, self._is_armed, self._usual, verdict.shrink)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Everything that the next decision depends on; `copy` gives copies on the host."""
        parts = {"baseline": self.baseline.state_dict(), "budget": self._budget.state_dict()}
        return _copy_to_host(parts) if copy else parts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        try:
            self.baseline.load_state_dict(state["baseline"])
            self._budget.load_state_dict(state["budget"])
        except (KeyError, RuntimeError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the guard's saved state does not fit ({error}); it may come from a different "
                "version or a different gate.window: leave it out, and the gate starts to learn"
            ) from error
        self._refresh()

    def _refresh(self) -> None:
        """Put the scales of the baseline into the conditions."""
        scales, count = self.baseline.scales, self.baseline.count
        self._usual = self.baseline.usual
        self._inverse_usual = (-self._usual[1:]).exp()
        self._is_armed = (count >= self._min_history).to(torch.float32)
        explained = self._explained / scales[4:]
        weights = self._weights - explained.unsqueeze(2) * self._is_loss
        limits = (
            self._constants + (self._scale_weights * scales).sum(dim=2) + explained * scales[:1]
        )
        limits = torch.where(count < self._min_count, -math.inf, limits)
        self._matrix = torch.cat((weights, limits.unsqueeze(2)), dim=2)


def _copy_to_host(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {n: v.cpu().clone() if isinstance(v, torch.Tensor) else v for n, v in part.items()}
        for name, part in parts.items()
    }
