"""Rule: which update of a protected run is applied as it is, scaled down, or discarded.

This is all that decides whether an optimizer's step is withheld. It reads from top to bottom: the
thresholds with their sources, then for one step its quantities, the conditions on them (against
what is usual in this run, `baseline`), and the decision (`Rule.judge`), then what is remembered for
the next step (`Rule.learn`).

    not finite   loss or gradient is NaN or infinite         discarded, always
    accident     norm far above the usual and not explained
                 by the loss, and the loss above it too      discarded      few over the whole run
    excess       norm far above the usual and not explained
                 by the loss                                 scaled down    a few at a time
    extreme      norm 100 times the usual, whatever the loss scaled down    a few at a time
    odd          loss and norm both above the usual          counted

A larger loss explains a larger gradient. Where the loss rises with the norm, the batch is hard, or
rare, or the weights are damaged: such a step has to be learnt from, and is not touched. A norm that
the loss does not explain comes from broken data or a broken device. Nothing is withheld by the loss
alone. After a few odd steps in a row nothing finite is touched: they are no accident. And an
accident is rare: what keeps coming is a mode of the data, a new level, or damaged weights, which
have to be learnt, so each kind of act has a budget.

On a device everything here is a tensor of one number, which the host neither reads nor waits for;
where the device is the host it is a float (`arithmetic`). Every rank decides from the same sums, so
all ranks decide alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.core.errors import ConfigError
from trimtab.live.arithmetic import Math, Scalar, Vector
from trimtab.live.protect.baseline import baseline_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GateThresholds:
    """When a step is discarded or scaled down.

    They are no settings: each was measured on healthy public runs, on healthy runs of many other
    kinds and on faults of the lab, and what suits one run by eye fails on the next. A sigma is a
    median absolute deviation scaled to a normal distribution; those of the norm are sigmas of its
    logarithm. Figures are in benchmarks/RESULTS.md, "The gate on ..." and "Recover: faults".
    """

    window: int = 128
    """Steps that medians are computed from. Source: 78 public runs, where 64 to 192 were equal."""
    min_history: int = 96
    """Known steps before a finite step can be discarded: three quarters of the window. The norm of
    a run that has just begun moves a lot: with 64, two of 24,000 healthy steps of the lab were
    discarded, both at about step 75."""
    min_history_extreme: int = 32
    """Known steps before a norm over `extreme_norm_ratio` is scaled down. Source: of the tuning
    half of the healthy kinds none has such a norm in its first 96 steps."""
    norm_ratio: float = 5.0
    """A gradient norm at least this many times its median can be scaled down. Source: in public
    runs one step in 15,000 passes this, `norm_sigmas` and `norm_explained_by_loss`."""
    norm_sigmas: float = 14.0
    """And at least this many sigmas above it, so that a run with a noisy norm is left alone.
    Source: batches of a single row of 32 tokens reach 12.9 and are only noise."""
    norm_explained_by_loss: float = 1.5
    """A loss above its median by the share x explains a norm of exp(1.5 x) times its median; a step
    is only touched if its norm is larger. Source: bad batches of the lab reach 1.7 or more in 19 of
    20 runs; an inverted head 0.4, one step with 333 times the learning rate 1.3; of 95 steps of the
    tuning half of the healthy kinds with loss and norm that high, none reaches 1.5."""
    extreme_norm_ratio: float = 100.0
    """A norm at least this many times its median is scaled down whatever the loss. Source: of the
    tuning half of the healthy kinds only one, two tasks of different scale, has such steps."""
    loss_sigmas: float = 6.0
    """A step is odd if loss and norm are both at least this many sigmas above their medians.
    Source: never both in 38,000 healthy steps of two public GPT-2 runs."""
    loss_excess: float = 0.1
    """And the loss at least this share above its median. Source: bumps of up to 8 % come from the
    order of the data alone, in several runs at the same step."""
    odd_norm_ratio: float = 2.0
    """And the norm at least this many times its median. An odd step is discarded if its norm also
    passes `norm_ratio`, `norm_sigmas` and `norm_explained_by_loss`; else it is only counted."""
    max_consecutive_discards: int = 5
    """Odd steps in a row before everything finite is let through: the weights are damaged or the
    level has moved, and only training helps. Source: bad shards of the lab last 1 to 5 batches."""
    max_discards: float = 5.0
    """Finite steps discarded before the rest of their kind is let through. Source: the longest bad
    shard of the lab is 5 batches; with 3 discards 17 of 20 of those runs were within 0.02 of the
    clean one, with 5 it was 19."""
    discard_memory_steps: int = 20_000
    """How slowly discards are forgotten: each counts less by one part in this many with every step.
    With `max_discards` that is one discard in 4,500 steps in the long run. Source: a budget of
    0.02 % of steps, so that only what is rarer than that can be withheld again and again."""
    max_scaled: float = 16.0
    """Steps scaled down before the rest of their kind is let through. Source: BLOOM's first spike
    has 7 such steps, and a second one may follow it."""
    max_extreme_scaled: float = 4.0
    """The same for steps scaled down by `extreme_norm_ratio` alone. Source: with 8, a head
    multiplied by 100 cost 7 of 51 nat in the next 40 steps."""
    scale_memory_steps: int = 4_000
    """How slowly scaled steps are forgotten; one in 260 steps in the long run. Source: a budget
    of 0.4 % of steps, larger than that of discards because a scaled step is still learnt from."""


THRESHOLDS = GateThresholds()
"""What every run is judged with."""

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
    """What was decided about a step, and why."""

    discards: Scalar
    shrink: Scalar
    """What the gradients are divided by; 1 if the step stays as it is."""
    lets_through: Scalar
    """Whether the step is odd and too many before it were."""
    loss: Scalar
    """NaN unless loss and gradient are finite."""
    log_norm: Scalar
    """NaN if the loss is, -inf for a step without gradients."""
    is_odd: Scalar
    is_excess: Scalar
    is_extreme: Scalar
    is_accident: Scalar


class _DeviceCounts:
    """How often the gate has acted, fading with every step; one tensor for all kinds of acts."""

    def __init__(self, most: Sequence[float], fading: Sequence[float], device: torch.device):
        self._most = torch.tensor(most, dtype=torch.float32, device=device)
        self._fading = self._most.new_tensor(fading)
        self._counts = torch.zeros_like(self._most)
        self._odd_in_a_row = self._counts[:1]

    def rooms(self) -> Sequence[torch.Tensor]:
        """Return for each kind of act whether there is room for one more."""
        return (self._counts <= self._most).unbind()

    def add(self, acts: Sequence[torch.Tensor]) -> None:
        """Count the acts of one step; the first kind counts in a row."""
        self._counts.mul_(self._fading).add_(torch.stack(list(acts)))
        self._odd_in_a_row.mul_(acts[0])

    def state(self) -> torch.Tensor:
        return self._counts

    def load(self, state: torch.Tensor) -> None:
        self._counts.copy_(state)


class _HostCounts:
    """The same as floats."""

    def __init__(self, most: Sequence[float], fading: Sequence[float]) -> None:
        self._most, self._fading = most, fading
        self._counts = [0.0] * len(most)

    def rooms(self) -> Sequence[bool]:
        return [count <= most for count, most in zip(self._counts, self._most, strict=True)]

    def add(self, acts: Sequence[bool]) -> None:
        faded = zip(self._counts, self._fading, acts, strict=True)
        self._counts = [count * fading + act for count, fading, act in faded]
        self._counts[0] *= acts[0]

    def state(self) -> torch.Tensor:
        return torch.tensor(self._counts, dtype=torch.float64)

    def load(self, state: torch.Tensor) -> None:
        if len(state) != len(self._counts):
            raise RuntimeError(f"it counts {len(state)} kinds of acts")
        self._counts = state.tolist()


class Rule:
    """Judges each step against those before it."""

    def __init__(self, arithmetic: Math, thresholds: GateThresholds | None = None) -> None:
        self.arithmetic = arithmetic
        self._thresholds = thresholds = thresholds or THRESHOLDS
        self.baseline = baseline_of(thresholds.window, arithmetic)
        # Steps that were odd, in excess, extreme and accidents.
        scaled = 1.0 - 1.0 / thresholds.scale_memory_steps
        fading = (1.0, scaled, scaled, 1.0 - 1.0 / thresholds.discard_memory_steps)
        most = (
            *(thresholds.max_consecutive_discards - 1.0, thresholds.max_scaled - 1.0),
            *(thresholds.max_extreme_scaled - 1.0, thresholds.max_discards - 1.0),
        )
        self._counts: _HostCounts | _DeviceCounts
        if arithmetic.is_host:
            self._counts = _HostCounts(most, fading)
        else:
            self._counts = _DeviceCounts(most, fading, arithmetic.device)
        self._compute_limits()

    def judge(self, sums: Vector, *, may_scale: bool = True) -> Verdict:
        """Decide about one step from `sums`, its sums over all ranks in the order of RULE_SUMS.

        A norm that is not that of the gradients as they are now says nothing about how much they
        would have to be scaled: then `may_scale` is False.
        """
        # Quantities of this step.
        numbers = self.arithmetic
        loss_sum, tokens, num_nan, num_inf, given, num_given, squares, _ = numbers.parts(sums)
        norm = numbers.where(num_given > 0, numbers.ratio(given, num_given), numbers.root(squares))
        is_finite = (norm < math.inf) & (num_nan + num_inf == 0)
        # The sum leaves out losses that are not finite, so then it is not that of the whole batch.
        loss = numbers.where(is_finite, numbers.ratio(loss_sum, tokens), numbers.nan)
        # 0 x NaN is NaN: for a step without a loss there is no norm to compare either.
        log_norm = numbers.log(norm) + loss * 0.0

        # Conditions: the step against what is usual. None holds for NaN, nor while too few steps
        # are known: then the limits are infinite.
        loss_is_high = loss >= self._high_loss
        norm_is_raised = log_norm >= self._raised_norm
        norm_is_large = log_norm >= self._large_norm
        norm_is_extreme = log_norm >= self._extreme_norm
        explained = self._usual_log_norm + (loss - self._usual_loss) * self._norm_per_loss
        norm_is_unexplained = log_norm >= explained

        # Conditions: what has been done before leaves room for one more.
        is_isolated, may_scale_excess, may_scale_extreme, may_discard = self._counts.rooms()

        # The decision.
        is_odd = loss_is_high & norm_is_raised
        is_suspicious = norm_is_large & norm_is_unexplained & is_isolated
        is_excess = is_suspicious & may_scale_excess
        is_extreme = norm_is_extreme & is_isolated & may_scale_extreme
        is_accident = is_suspicious & loss_is_high & may_discard
        shrink = numbers.one
        if may_scale:  # back to the usual norm
            shrink = numbers.where(is_excess | is_extreme, norm * self._per_usual_norm, shrink)
        return Verdict(
            discards=is_accident | numbers.negated(is_finite),
            shrink=shrink,
            lets_through=is_odd & numbers.negated(is_isolated),
            loss=loss,
            log_norm=log_norm,
            is_odd=is_odd,
            is_excess=is_excess,
            is_extreme=is_extreme,
            is_accident=is_accident,
        )

    def learn(self, verdict: Verdict) -> None:
        """Remember a step that was judged, whatever was done to it."""
        self._counts.add(
            (verdict.is_odd, verdict.is_excess, verdict.is_extreme, verdict.is_accident)
        )
        if self.baseline.update(verdict.loss, verdict.log_norm):
            self._compute_limits()

    def report(self, verdict: Verdict) -> tuple[Scalar, ...]:
        """Return the values of REPORT_NAMES, as the step was judged with them."""
        usual = (self._usual_loss, self._usual_log_norm)
        return (verdict.lets_through, self._is_armed, *usual, verdict.shrink)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Return all that the next decision depends on; `copy` gives copies on the host."""
        state = {"counts": self._counts.state(), **self.baseline.state_dict()}
        if copy:
            for name, value in state.items():
                state[name] = value.cpu().clone() if isinstance(value, torch.Tensor) else value
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raises ConfigError if it does not fit."""
        try:
            self._counts.load(state["counts"])
            self.baseline.load_state_dict(state)
        except (KeyError, RuntimeError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the guard's saved state does not fit ({error}); it may come from a different "
                "version: leave it out, and the gate starts to learn"
            ) from error
        self._compute_limits()

    def _compute_limits(self) -> None:
        """Compute the limits of the conditions from the baseline, each time it has changed."""
        # Tensors or floats; a union of both would have to be taken apart at every operation.
        baseline: Any = self.baseline
        limits, numbers = self._thresholds, self.arithmetic
        usual_loss, usual_log_norm = baseline.usual_loss, baseline.usual_log_norm
        is_armed = baseline.count >= limits.min_history

        def norm_limit(sigmas: float, ratio: float) -> Scalar:
            return usual_log_norm + numbers.maximum(sigmas * baseline.norm_sigma, math.log(ratio))

        def if_armed(limit: Scalar, is_armed: Scalar = is_armed) -> Scalar:
            return numbers.where(is_armed, limit, math.inf)  # nothing finite is over infinity

        self._usual_loss, self._usual_log_norm = usual_loss, usual_log_norm
        self._per_usual_norm = numbers.exp(-usual_log_norm)
        self._norm_per_loss = limits.norm_explained_by_loss / baseline.loss_size
        self._is_armed = is_armed
        loss_excess = numbers.maximum(
            limits.loss_sigmas * baseline.loss_sigma, limits.loss_excess * baseline.loss_size
        )
        self._high_loss = if_armed(usual_loss + loss_excess)
        self._raised_norm = if_armed(norm_limit(limits.loss_sigmas, limits.odd_norm_ratio))
        self._large_norm = if_armed(norm_limit(limits.norm_sigmas, limits.norm_ratio))
        self._extreme_norm = if_armed(
            norm_limit(limits.norm_sigmas, limits.extreme_norm_ratio),
            baseline.count >= limits.min_history_extreme,
        )
