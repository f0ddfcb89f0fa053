"""TrainingPlan: the settings of a run under the same names for every framework, and what follows.

Every format is turned into this, and rules on configs see nothing else. None is "unknown": a rule
that needs an unknown value is not run and is listed. From the settings follow the learning rate of
every step (`Curve`) and what a rollback costs at worst (`RollbackCost`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trimtab.checks.rule import hours
from trimtab.core.errors import UnreadablePlan

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Points = tuple[tuple[int, float], ...]
"""A schedule as (step, rate), with straight lines between."""

MAX_POINTS = 200_000
"""A longer run is simulated at this many evenly spaced steps: a jump is still one, no plan moves by
as much as a tenth between two of them, and the answer comes at once."""


class Shape(StrEnum):
    """How a learning rate comes down."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_RESTARTS = "cosine-restarts"
    SQRT = "sqrt"
    """1 minus the square root of the progress."""
    INVERSE_SQRT = "inverse-sqrt"
    EXPONENTIAL = "exponential"
    """2 * 0.5^progress - 1, as Megatron ends a warm-up-stable-decay schedule."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A learning rate over the steps of a run."""

    step: IntArray
    lr: FloatArray
    warmup: int
    """Points of the curve that belong to the warm-up, as it was declared or else as it looks."""

    @property
    def peak(self) -> float:
        return float(self.lr.max())

    @property
    def after_warmup(self) -> FloatArray:
        """The rates after the warm-up; empty if it never ends."""
        return self.lr[self.warmup :]

    @property
    def still_rising(self) -> bool:
        """Whether the run ends before its warm-up does, or with the last steps of it."""
        return len(self.after_warmup) < max(0.02 * len(self.lr), 1)

    def at(self, step: int) -> float:
        """Return the rate of a step; after the end, that of the last step."""
        place = int(np.searchsorted(self.step, step))
        return float(self.lr[min(place, len(self.lr) - 1)])


@lru_cache(maxsize=8)  # a dozen rules use the same curve
def _simulate(plan: "TrainingPlan", steps: int) -> Curve:
    step = np.linspace(0, steps - 1, min(steps, MAX_POINTS)).astype(np.int64)
    if plan.lr_points:
        places, rates = zip(*sorted(plan.lr_points), strict=True)
        values = np.interp(step, places, rates)
        return Curve(step, values, warmup=int(np.argmax(values)))
    lr = 1.0 if plan.lr is None else plan.lr
    final_lr, warmup_steps = plan.final_lr or 0.0, plan.warmup_steps or 0
    begin = warmup_steps if plan.decay_start is None else plan.decay_start
    end = steps if plan.decay_end is None else plan.decay_end
    progress = np.maximum((step - begin) / max(end - begin, 1), 0.0)
    if plan.holds_after_decay:
        progress = np.minimum(progress, 1.0)
    if plan.schedule is Shape.INVERSE_SQRT:
        values = lr * np.sqrt(max(warmup_steps, 1) / np.maximum(step, max(warmup_steps, 1)))
        values = np.maximum(values, final_lr)
    else:
        schedule = plan.schedule or Shape.CONSTANT
        values = final_lr + (lr - final_lr) * _share(schedule, progress, plan.cycles)
    if warmup_steps > 0:
        # From step 0 on. Some frameworks begin with a rate of 0; no rule looks that closely.
        values = np.where(step < warmup_steps, lr * (step + 1) / warmup_steps, values)
    return Curve(step, values, warmup=int(np.searchsorted(step, warmup_steps)))


def _share(schedule: Shape, progress: FloatArray, cycles: float | None) -> FloatArray:
    """Return what is left of the way from the peak to the floor."""
    if schedule is Shape.CONSTANT:
        return np.ones_like(progress)
    if schedule is Shape.LINEAR:
        return 1.0 - progress
    if schedule is Shape.SQRT:
        return 1.0 - np.sqrt(progress)
    if schedule is Shape.EXPONENTIAL:
        return 2.0 * 0.5**progress - 1.0
    turns = 0.5 if cycles is None else cycles
    if schedule is Shape.COSINE_RESTARTS:
        descents = 1.0 if cycles is None else cycles
        # The last step belongs to the last descent, not to a new one.
        place = np.where(progress >= 1.0, 1.0, (descents * progress) % 1.0)
        return 0.5 * (1.0 + np.cos(np.pi * place))
    return 0.5 * (1.0 + np.cos(2.0 * np.pi * turns * progress))


ADAM_FAMILY = frozenset({"adam", "adamw", "nadamw"})
"""Optimizers that divide by the root of a running second moment and have an epsilon under it."""

LARGE_MODEL = 1e9
"""Parameters from which attention and output logits have run away in published runs."""

_ABOVE_ZERO = frozenset(
    {"steps", "batch_size", "seq_len", "micro_batches", "parameters", "layers", "width"}
    | {"vocab_size", "mup_base_width", "step_seconds", "lora_rank"}
)
_NOT_BELOW_ZERO = frozenset(
    {"warmup_steps", "checkpoint_steps", "keep_checkpoints", "log_steps", "eval_steps"}
    | {"init_std", "detection_steps", "price_per_hour", "experts"}
)
_LARGEST = 1e15
"""No setting of a run is larger; a larger one is a slip, and would not fit the arithmetic."""

DETECTION_STEPS = 200
"""Steps until trouble is acted on, by default: the textbook waits 200 steps for a spike to
recover, and calls 200 rises in a row a divergence."""

DETERMINED_BY: Mapping[str, tuple[str, ...]] = {
    "adam": ("optimizer",),
    "batch_tokens": ("batch_size", "seq_len"),
    "model_size": ("parameters",),
    "large": ("parameters",),
    "mixture": ("experts",),
    "curve": ("steps", "schedule", "warmup_steps"),
}
"""Settings that determine a property of the plan."""


class Precision(StrEnum):
    """A number format."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"


class LossScaling(StrEnum):
    """How small gradients are kept from vanishing in fp16."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"


class NormPlace(StrEnum):
    """Where a block has its norms."""

    PRE = "pre"
    """Before each layer; the residual stream bypasses it."""
    POST = "post"
    """After each residual sum, as in the first transformer."""
    BRANCH = "branch"
    """After each layer and before the sum (OLMo 2), or before and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackCost:
    """The worst case: the last checkpoint was about to be written when trouble began."""

    steps: int
    """Steps made for nothing: since the checkpoint, and until somebody acted."""
    detection: int
    """How many of them pass before somebody acts."""
    seconds: float | None
    dollars: float | None

    def __str__(self) -> str:
        parts = [f"{self.steps:,} steps"]
        if self.seconds is not None:
            parts.append(hours(self.seconds))
        if self.dollars is not None:
            parts.append(f"${self.dollars:,.0f}")
        return " = ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The settings of a run before its first step; None is unknown."""

    # The run
    steps: int | None = None
    """Optimizer updates in the whole run."""
    from_scratch: bool | None = None
    """True for pretraining, False for fine-tuning."""
    batch_size: int | None = None
    """Sequences in a step, over all ranks and micro-batches."""
    seq_len: int | None = None
    """Tokens in a sequence."""
    micro_batches: int | None = None
    """Micro-batches that a rank sums up into a step."""

    # The optimizer
    optimizer: str | None = None
    """Lower case: adamw, adam, adafactor, sgd, lion, muon."""
    lr: float | None = None
    """Peak learning rate."""
    beta1: float | None = None
    """Memory of the first moment."""
    beta2: float | None = None
    """Memory of the second moment."""
    epsilon: float | None = None
    """Adam's floor under the root of the second moment."""
    weight_decay: float | None = None
    """Coefficient of the decay."""
    decoupled_decay: bool | None = None
    """Whether the decay bypasses the second moment (AdamW) or is part of the gradient (L2)."""
    decay_norms: bool | None = None
    """Whether norms and biases are decayed too."""
    decay_embeddings: bool | None = None
    """Whether embeddings are decayed too."""
    clip_norm: float | None = None
    """Largest norm of a gradient; 0 is no clipping."""
    token_weighted_loss: bool | None = None
    """Whether the loss is the mean over all tokens of a step, not a mean of micro-batch means."""

    # The learning rate over time
    schedule: Shape | None = None
    """How the learning rate comes down."""
    warmup_steps: int | None = None
    """Steps of linear warm-up; 0 is none."""
    decay_start: int | None = None
    """First step of the decay; None is the end of the warm-up."""
    decay_end: int | None = None
    """Step at which the decay is complete; None is the last step."""
    final_lr: float | None = None
    """Where the decay ends."""
    cycles: float | None = None
    """Periods of the cosine; None is half a period, which is one way down."""
    holds_after_decay: bool = True
    """Whether the rate stays at its floor after the decay, or the formula continues."""
    lr_points: Points | None = None
    """The whole schedule as (step, rate) with straight lines between; overrides the others."""
    resume_step: int | None = None
    """Step at which the run is to be resumed."""
    schedule_step: int | None = None
    """Step at which the schedule continues then."""

    # Number formats
    compute: Precision | None = None
    """In what matrices are multiplied."""
    weights: Precision | None = None
    """In what the optimizer keeps the weights that it updates (master weights)."""
    optimizer_state: Precision | None = None
    """In what the second moment is kept."""
    gradient_sum: Precision | None = None
    """In what gradients are summed over micro-batches and ranks."""
    loss_scaling: LossScaling | None = None
    """How the loss is scaled in fp16."""
    min_loss_scale: float | None = None
    """How far a dynamic loss scale may fall."""
    softmax_fp32: bool | None = None
    """Whether attention takes its softmax in fp32."""
    cross_entropy_fp32: bool | None = None
    """Whether the loss is computed from logits in fp32."""
    fp8_format: str | None = None
    """e4m3, or hybrid: e4m3 forward and e5m2 for gradients."""
    fp8_scaling: str | None = None
    """delayed, tensorwise, rowwise, blockwise or mxfp8."""
    fp8_history: int | None = None
    """Steps whose largest values set the scale, with delayed scaling."""
    fp8_output_layer: bool | None = None
    """Whether the output layer is computed in fp8 too."""

    # The model
    parameters: float | None = None
    """Number of parameters."""
    layers: int | None = None
    """Number of blocks."""
    width: int | None = None
    """Size of the residual stream."""
    vocab_size: int | None = None
    """Number of tokens in the vocabulary."""
    norm: NormPlace | None = None
    """Where the norms are."""
    init_std: float | None = None
    """Deviation of the initial weights."""
    depth_scaled_init: bool | None = None
    """Whether what is written into the residual stream starts smaller in deeper models."""
    embedding_norm: bool | None = None
    """Whether the embedding is normalised, or initialised near 1, which does the same."""
    qk_norm: bool | None = None
    """Whether queries and keys are normalised."""
    z_loss: float | None = None
    """Weight of (log Z)^2 in the loss; 0 is off."""
    mup_base_width: int | None = None
    """The width at which learning rate and init were tuned, under muP."""
    experts: int | None = None
    """Experts of a mixture; 0 for a dense model."""
    balance_loss: float | None = None
    """Weight of the loss that balances the experts; 0 is off."""
    balance_bias: bool | None = None
    """Whether experts are balanced by a bias on the router instead."""

    # Fine-tuning
    lora_rank: int | None = None
    """Rank of the LoRA adapters that are trained in place of the weights."""
    lora_alpha: float | None = None
    """Their output is multiplied by this and divided by the rank."""
    packing: bool | None = None
    """Whether several texts share a row."""
    masks_packed: bool | None = None
    """Whether attention stays within its own text of a packed row."""

    # Running it
    checkpoint_steps: int | None = None
    """Steps between two checkpoints; 0 is never."""
    keep_checkpoints: int | None = None
    """Newest checkpoints that are kept; 0 is all."""
    saves_optimizer: bool | None = None
    """Whether a checkpoint holds the optimizer's state, and a resume loads it."""
    saves_rng: bool | None = None
    """Whether a checkpoint holds the random generators' state, and a resume loads it."""
    restores_data: bool | None = None
    """Whether a resume continues with the data where the checkpoint was written."""
    log_steps: int | None = None
    """Steps between two logged losses; 0 is never."""
    nan_filter: bool | None = None
    """Whether the logger leaves NaN and infinite losses out."""
    nan_check: bool | None = None
    """Whether the trainer looks for NaN in losses and gradients."""
    eval_steps: int | None = None
    """Steps between two evaluations on held-out data; 0 is never."""
    seeded: bool | None = None
    """Whether weights and data order come from a fixed seed."""
    detection_steps: int | None = None
    """Steps between the onset of trouble and the moment somebody or something acts on it."""
    step_seconds: float | None = None
    """Duration of a step."""
    price_per_hour: float | None = None
    """What an hour of the whole job costs, in US dollars."""

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            number = isinstance(value, int | float)
            if number and not abs(value) <= _LARGEST and (name, value) != ("clip_norm", math.inf):
                raise UnreadablePlan(f"{name} cannot be {value}")
            if name in _ABOVE_ZERO and value is not None and not value > 0:
                raise UnreadablePlan(f"{name} must be above 0, got {value}")
            if name in _NOT_BELOW_ZERO and value is not None and not value >= 0:
                raise UnreadablePlan(f"{name} must be 0 or more, got {value}")

    @property
    def adam(self) -> bool | None:
        return None if self.optimizer is None else self.optimizer in ADAM_FAMILY

    @property
    def batch_tokens(self) -> int | None:
        if self.batch_size is None or self.seq_len is None:
            return None
        return self.batch_size * self.seq_len

    @property
    def model_size(self) -> float | None:
        """Parameters as given, or computed from the shape."""
        if self.parameters is not None or self.layers is None or self.width is None:
            return self.parameters
        # 4 d^2 for attention and 8 d^2 for the MLP, whether classic or SwiGLU (Shazeer 2020).
        return 12.0 * self.layers * self.width**2 + (self.vocab_size or 0) * self.width

    @property
    def large(self) -> bool | None:
        """Whether the model is of a size at which logits have run away in published runs."""
        return None if self.model_size is None else self.model_size >= LARGE_MODEL

    @property
    def mixture(self) -> bool | None:
        return None if self.experts is None else self.experts > 1

    @property
    def mup(self) -> bool:
        """Whether rates and init are scaled from a different width."""
        return self.mup_base_width is not None

    @property
    def resumed(self) -> bool:
        return self.resume_step is not None

    @property
    def detection_delay(self) -> int:
        """Steps between the onset of trouble and a reaction: it is not seen before it is logged."""
        steps = DETECTION_STEPS if self.detection_steps is None else self.detection_steps
        return steps + (self.log_steps or 0)

    @property
    def rollback(self) -> RollbackCost | None:
        """What a rollback costs at worst; None if there is no checkpoint to return to."""
        if self.checkpoint_steps is None or self.checkpoint_steps <= 0:
            return None
        steps = self.checkpoint_steps + self.detection_delay
        steps = steps if self.steps is None else min(steps, self.steps)
        seconds = None if self.step_seconds is None else steps * self.step_seconds
        price = self.price_per_hour
        dollars = None if seconds is None or price is None else seconds / 3600 * price
        return RollbackCost(
            steps=steps, detection=self.detection_delay, seconds=seconds, dollars=dollars
        )

    @property
    def curve(self) -> Curve | None:
        """The learning rate of every step, simulated; None if the schedule is not known."""
        if self.steps is None or (self.lr is not None and self.lr <= 0):
            return None
        if self.lr_points is None and (self.schedule is None or self.warmup_steps is None):
            return None
        return _simulate(self, self.steps)
