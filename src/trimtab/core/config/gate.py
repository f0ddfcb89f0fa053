"""When a protected run discards a step."""

from dataclasses import dataclass

from trimtab.core.config.section import Section, require


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Section):
    """When a step of a protected run is discarded or scaled down.

    A sigma is a median absolute deviation scaled to a normal distribution, over the steps of the
    window; those of the norm are sigmas of its logarithm. Figures of the healthy kinds, the spike
    and the lab are in benchmarks/RESULTS.md, "The gate on ..." and "Protection in the lab".
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

    promote: bool = True
    """Whether Adam, AdamW, SGD and Adagrad are made fused, the form that needs no host read."""

    def __post_init__(self) -> None:
        require(2 <= self.min_history <= self.window, "min_history must be in 2..window")
        require(
            2 <= self.min_history_extreme <= self.min_history,
            "min_history_extreme must be in 2..min_history",
        )
        for name in ("norm_sigmas", "norm_explained_by_loss", "loss_sigmas", "loss_excess"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        for name in ("norm_ratio", "extreme_norm_ratio", "odd_norm_ratio"):
            require(getattr(self, name) > 1, f"{name} must be over 1")
        counts = ("max_consecutive_discards", "max_discards", "max_scaled", "max_extreme_scaled")
        for name in (*counts, "discard_memory_steps", "scale_memory_steps"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
