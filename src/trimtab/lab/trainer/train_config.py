"""TrainConfig: every setting that affects the numbers. Equal configs give bit-identical runs."""

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

from trimtab.core.errors import ConfigError
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import ModelConfig

_LONGEST_WARMUP = 2000
"""Steps of warm-up that published runs agree on (GPT-3, Llama, OLMo)."""

_MAY_CHANGE = frozenset({"checkpoint_steps", "eval_steps", "eval_batches", "measure"})
"""Settings that may differ after a resume: how the run is observed."""


class Dtype(StrEnum):
    """The dtype of matrix products; weights, optimizer and softmax stay in fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context of a forward pass; torch keeps operations that need it in fp32."""
        types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast(device.type, types[self.value], enabled=self is not Dtype.FP32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The settings of a training run; the defaults are those of large runs, scaled down."""

    model: ModelConfig
    """The model; `SIZES` has named ones."""
    steps: int
    """Length of the run, and of its learning rate schedule."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-3))
    """AdamW's settings. 1e-3 is the best of 3e-4, 1e-3 and 3e-3 at 3M and 10M, by the held-out loss
    after 300 steps of 512 tokens (10M: 5.26, 5.18, 5.30); 1M learns faster with 3e-3."""
    dtype: Dtype = Dtype.BF16
    """bf16 has the range of fp32, so nothing overflows and no loss scale is needed."""
    batch_size: int = 8
    """Windows per step, over all ranks and micro-batches."""
    length: int = 128
    """Tokens per window. A step of 8 x 128 tokens takes about a second at 10M on one core."""
    accumulate: int = 1
    """Micro-batches per step; the numbers are the same up to rounding."""
    clip: float | None = 1.0
    """Maximum gradient norm; None does not clip. Source: GPT-3, Llama, OLMo."""
    warmup_steps: int | None = None
    """Steps until the peak learning rate; None is 2,000, or a tenth of the run if that is less."""
    seed: int = 0
    """Determines the initial weights and the order of the data."""
    corpus_bytes: int = 2**25
    """Maximum source text to tokenize; the default exceeds the whole library, so all of it."""
    checkpoint_steps: int = 100
    """Steps between two checkpoints; there is always one after the last step."""
    eval_steps: int = 100
    """Steps between two evaluations on held-out text; there is always one at the end."""
    eval_batches: int = 8
    """Batches per evaluation, the same ones each time."""
    measure: bool = False
    """Whether to journal the largest attention logit, log Z and token loss as well; needs memory
    for all attention logits of a layer."""

    def __post_init__(self) -> None:
        positive = ("steps", "accumulate", "checkpoint_steps", "eval_steps", "eval_batches")
        for name in positive:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_size < 1 or self.batch_size % self.accumulate:
            raise ConfigError(
                f"batch_size {self.batch_size} must divide into {self.accumulate} micro-batches"
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip must be positive, got {self.clip}")
        if not 0 <= self.warmup <= self.steps:
            raise ConfigError(f"warmup_steps must be 0 to {self.steps}, got {self.warmup_steps}")

    @property
    def micro_batch_size(self) -> int:
        return self.batch_size // self.accumulate

    @property
    def warmup(self) -> int:
        if self.warmup_steps is not None:
            return self.warmup_steps
        return min(_LONGEST_WARMUP, self.steps // 10)

    def identity(self) -> dict[str, Any]:
        """Return the settings that must not change when a run is resumed."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in _MAY_CHANGE}
