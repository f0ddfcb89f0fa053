"""Rule: which update of a protected run is applied as it is, scaled down, or discarded.

This is all that decides whether an optimizer's step is withheld. It reads from top to bottom: the
thresholds with their sources, what is usual in this run (`Baseline`), then for one step its
quantities, the conditions on them, and the decision (`Rule.judge`), then what is remembered for the
next step (`Rule.learn`).

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

Everything here is a tensor on the device. The host neither reads one nor waits for one, and every
rank decides from the same sums, so all ranks decide alike.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.core.errors import ConfigError
from trimtab.core.robust import SIGMA


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

REFRESH_STEPS = 16
"""Steps from one computation of the median to the next: an eighth of the window by default."""

LOSS_FLOOR = 0.002
"""The smallest sigma of the loss, as a share of the usual loss: without it every batch of a loss
that hardly moves is an outlier. Source: healthy public runs, where 0.05 to 0.5 % were equal."""

LOSS_ZERO = 1e-6
"""The smallest sigma of a loss around 0. Source: with a sigma of 0, a loss of 1e-12 after some
hundred of exactly 0 was infinitely many sigmas away."""

NORM_FLOOR = 0.03
"""The smallest sigma of the log of the gradient norm. Source: healthy public runs."""

ONE_OF_TWO = 0.5**0.5
"""The noise of one step as a share of that of the difference between two."""

SIZE_SIGMAS = 5.0
"""The size of a loss is its median, or this many sigmas if that is more: a loss that changes its
sign has a median near 0. Source: a language model has a median of 12 to 100 sigmas."""


class Baseline:
    """Holds the usual loss and gradient norm, in buffers of fixed size on the device.

    They are the median and the median absolute deviation of the last `window` steps that have a
    finite loss and a gradient. Discarded steps enter like all others: there are few of them, a
    median hardly notices them, and a level that has moved is learnt in half a window. Both are
    computed on a fixed grid of steps, which is often enough and leaves few operations for the steps
    in between.

    A loss that falls over the window is spread out by its trend as well as by its noise. So its
    sigma is also computed from the differences of neighbouring steps, and the smaller one counts.
    That of the norm is not: it decides which steps are touched at all.
    """

    def __init__(self, window: int, device: torch.device) -> None:
        self._window = torch.full((window, 2), math.inf, dtype=torch.float32, device=device)
        """Loss and log norm of the last steps, in a ring."""
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        """Where the next step goes. It stays where it is after a step that does not count, which is
        overwritten by the next one."""
        self._steps = 0
        self._scales = self._window.new_full((5,), math.nan)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        """Steps that the numbers below are computed from."""
        self._zeros = self._window.new_zeros(2)
        self._floor = self._window.new_tensor([LOSS_ZERO, NORM_FLOOR])
        self._floor_by_size = self._window.new_tensor([LOSS_FLOOR, 0.0])
        self._name_scales()

    def _name_scales(self) -> None:
        """Name the numbers that a step is compared with; NaN while nothing is known."""
        scales: tuple[torch.Tensor, ...] = self._scales.split(1)
        self.usual_loss, self.usual_log_norm, self.loss_sigma, self.norm_sigma = scales[:4]
        self.loss_size = scales[4]

    def update(self, loss: torch.Tensor, log_norm: torch.Tensor) -> bool:
        """Add a step; returns whether the numbers have been computed anew."""
        step = torch.cat((loss, log_norm))
        counts = torch.dot(step, self._zeros) == 0  # NaN if either is not finite
        self._window.index_put_((self._place,), step)
        self._place.add_(counts).remainder_(len(self._window))
        self._steps += 1
        if self._steps % REFRESH_STEPS != 0:
            return False
        self._refresh()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on; the tensors are not copied."""
        tensors = {"window": self._window, "place": self._place, "scales": self._scales}
        return tensors | {"count": self.count, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._window.copy_(state["window"])
        self._place.copy_(state["place"])
        self._scales.copy_(state["scales"])
        self.count.copy_(state["count"])
        self._steps = int(state["steps"])

    def _refresh(self) -> None:
        counts = (self._window * self._zeros).sum(dim=1, keepdim=True) == 0
        self.count = counts.sum().view(1)
        # Steps that do not count become infinite and sort after the rest.
        values = torch.where(counts, self._window, math.inf)
        usual = self._median(values)
        sizes = usual.abs()
        floor = torch.addcmul(self._floor, sizes, self._floor_by_size)
        spread = torch.maximum(floor, SIGMA * self._median((values - usual).abs()))
        # Of a window that is not full, differences with what does not count sort after the rest.
        differences = (values - values.roll(1, dims=0)).abs()
        noise = torch.maximum(floor, SIGMA * ONE_OF_TWO * self._median(differences))
        loss_sigma = torch.minimum(spread, noise)[:1]
        size = torch.maximum(sizes, SIZE_SIGMAS * spread)[:1]
        self._scales = torch.cat((usual, loss_sigma, spread[1:], size))
        self._name_scales()

    def _median(self, values: torch.Tensor) -> torch.Tensor:
        """Return the median of the first `count` values of each column; the upper one of two."""
        return values.sort(dim=0).values.index_select(0, self.count >> 1).view(2)


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
    """What was decided about a step, and why; every field is a tensor of one number."""

    discards: torch.Tensor
    shrink: torch.Tensor
    """What the gradients are divided by; 1 if the step stays as it is."""
    lets_through: torch.Tensor
    """Whether the step is odd and too many before it were."""
    loss: torch.Tensor
    """NaN unless loss and gradient are finite."""
    log_norm: torch.Tensor
    """NaN if the loss is, -inf for a step without gradients."""
    is_odd: torch.Tensor
    is_excess: torch.Tensor
    is_extreme: torch.Tensor
    is_accident: torch.Tensor


class Rule:
    """Judges each step against those before it."""

    def __init__(self, device: torch.device, thresholds: GateThresholds | None = None) -> None:
        self._thresholds = thresholds = thresholds or THRESHOLDS
        self.baseline = Baseline(thresholds.window, device)
        # How many steps were odd, in excess, extreme and accidents: the first in a row, the others
        # fading with every step. One tensor, so that one operation serves all of them.
        self._counts = torch.zeros(4, dtype=torch.float32, device=device)
        self._odd_in_a_row = self._counts[:1]
        scaled = 1.0 - 1.0 / thresholds.scale_memory_steps
        discarded = 1.0 - 1.0 / thresholds.discard_memory_steps
        self._fading = self._counts.new_tensor([1.0, scaled, scaled, discarded])
        most = (
            *(thresholds.max_consecutive_discards, thresholds.max_scaled),
            *(thresholds.max_extreme_scaled, thresholds.max_discards),
        )
        self._max_counts = self._counts.new_tensor(most) - 1
        self._one = torch.ones(1, dtype=torch.float32, device=device)
        self._nan = torch.full_like(self._one, math.nan)
        self._compute_limits()

    def judge(self, head: torch.Tensor, *, may_scale: bool = True) -> Verdict:
        """Decide about one step from `head`, its sums over all ranks in the order of RULE_HEAD.

        A norm that is not that of the gradients as they are now says nothing about how much they
        would have to be scaled: then `may_scale` is False.
        """
        # Quantities of this step.
        loss_sum, tokens, num_nan, num_inf, given, num_given, squares, _ = head.split(1)
        norm = torch.where(num_given > 0, given / num_given, squares.sqrt())
        is_finite = (norm < math.inf) & (num_nan + num_inf == 0)
        # The sum leaves out losses that are not finite, so then it is not that of the whole batch.
        loss = torch.where(is_finite, loss_sum / tokens, self._nan)
        # 0 x NaN is NaN: for a step without a loss there is no norm to compare either.
        log_norm = norm.log() + loss * 0.0

        # Conditions: the step against what is usual. None holds for NaN, nor while too few steps
        # are known: then the limits are infinite.
        loss_is_high = loss >= self._high_loss
        norm_is_raised = log_norm >= self._raised_norm
        norm_is_large = log_norm >= self._large_norm
        norm_is_extreme = log_norm >= self._extreme_norm
        explained = self._usual_log_norm + (loss - self._usual_loss) * self._norm_per_loss
        norm_is_unexplained = log_norm >= explained

        # Conditions: what has been done before leaves room for one more.
        is_isolated, may_scale_excess, may_scale_extreme, may_discard = (
            self._counts <= self._max_counts
        ).split(1)

        # The decision.
        is_odd = loss_is_high & norm_is_raised
        is_suspicious = norm_is_large & norm_is_unexplained & is_isolated
        is_excess = is_suspicious & may_scale_excess
        is_extreme = norm_is_extreme & is_isolated & may_scale_extreme
        is_accident = is_suspicious & loss_is_high & may_discard
        shrink = self._one
        if may_scale:  # back to the usual norm
            shrink = torch.where(is_excess | is_extreme, norm * self._per_usual_norm, shrink)
        return Verdict(
            discards=is_accident | ~is_finite,
            shrink=shrink,
            lets_through=is_odd & ~is_isolated,
            loss=loss,
            log_norm=log_norm,
            is_odd=is_odd,
            is_excess=is_excess,
            is_extreme=is_extreme,
            is_accident=is_accident,
        )

    def learn(self, verdict: Verdict) -> None:
        """Remember a step that was judged, whatever was done to it."""
        acts = (verdict.is_odd, verdict.is_excess, verdict.is_extreme, verdict.is_accident)
        self._counts.mul_(self._fading).add_(torch.cat(acts))
        self._odd_in_a_row.mul_(verdict.is_odd)
        if self.baseline.update(verdict.loss, verdict.log_norm):
            self._compute_limits()

    def report(self, verdict: Verdict) -> tuple[torch.Tensor, ...]:
        """Return the values of REPORT_NAMES, as the step was judged with them."""
        usual = (self._usual_loss, self._usual_log_norm)
        return (verdict.lets_through, self._is_armed, *usual, verdict.shrink)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Return all that the next decision depends on; `copy` gives copies on the host."""
        state = {"counts": self._counts, **self.baseline.state_dict()}
        if copy:
            for name, value in state.items():
                state[name] = value.cpu().clone() if isinstance(value, torch.Tensor) else value
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raises ConfigError if it does not fit."""
        try:
            self._counts.copy_(state["counts"])
            self.baseline.load_state_dict(state)
        except (KeyError, RuntimeError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the guard's saved state does not fit ({error}); it may come from a different "
                "version: leave it out, and the gate starts to learn"
            ) from error
        self._compute_limits()

    def _compute_limits(self) -> None:
        """Compute the limits of the conditions from the baseline, each time it has changed."""
        baseline, limits = self.baseline, self._thresholds
        usual_loss, usual_log_norm = baseline.usual_loss, baseline.usual_log_norm
        is_armed = baseline.count >= limits.min_history

        def norm_limit(sigmas: float, ratio: float) -> torch.Tensor:
            return usual_log_norm + (sigmas * baseline.norm_sigma).clamp(min=math.log(ratio))

        def if_armed(limit: torch.Tensor, is_armed: torch.Tensor = is_armed) -> torch.Tensor:
            return torch.where(is_armed, limit, math.inf)  # nothing finite is over infinity

        self._usual_loss, self._usual_log_norm = usual_loss, usual_log_norm
        self._per_usual_norm = (-usual_log_norm).exp()
        self._norm_per_loss = limits.norm_explained_by_loss / baseline.loss_size
        self._is_armed = is_armed.to(torch.float32)
        loss_excess = torch.maximum(
            limits.loss_sigmas * baseline.loss_sigma, limits.loss_excess * baseline.loss_size
        )
        self._high_loss = if_armed(usual_loss + loss_excess)
        self._raised_norm = if_armed(norm_limit(limits.loss_sigmas, limits.odd_norm_ratio))
        self._large_norm = if_armed(norm_limit(limits.norm_sigmas, limits.norm_ratio))
        self._extreme_norm = if_armed(
            norm_limit(limits.norm_sigmas, limits.extreme_norm_ratio),
            baseline.count >= limits.min_history_extreme,
        )
