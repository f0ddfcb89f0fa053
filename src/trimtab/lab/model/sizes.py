"""ModelConfig: the shape of a model and its stability options. SIZES: the lab's named models.

Parameter counts include the embedding and the head; a tied head counts once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trimtab.core.errors import ConfigError

_GPT2_STD = 0.02
"""Standard deviation of GPT-2's initial weights, and the default of Megatron-LM."""

_MLP_MULTIPLE = 32
"""The MLP's width is rounded up to a multiple of this, so that matrix kernels get whole tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a GPT and its options; the defaults are safe below 1B parameters."""

    vocab_size: int
    """Number of tokens."""
    width: int
    """Size of the residual stream."""
    layers: int
    """Number of blocks."""
    heads: int
    """Attention heads; each has `width / heads` channels."""
    tied_head: bool = True
    """Whether the output layer shares the embedding's weights. Saves a third of a tiny model."""
    post_norm: bool = False
    """Normalise after each residual sum instead of before each layer, as in the original
    transformer. Deep models hardly learn this way; it is here to show that."""
    qk_norm: bool = False
    """Normalise queries and keys, which bounds attention logits by the square root of the head
    size times the gains (ViT-22B). For models above about 1B parameters."""
    init_std: float | None = None
    """Standard deviation of the initial weights; None derives it from the width (`base_std`)."""
    mup_base_width: int | None = None
    """The width at which learning rate and init were tuned (muP); None is off. Larger models have
    more heads of the same size, so the attention scale does not change."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(
            self.width % (2 * self.heads) == 0,
            f"width {self.width} must be an even multiple of heads {self.heads}: "
            "rotary positions rotate channels in pairs",
        )
        _require(
            self.init_std is None or self.init_std > 0,
            f"init_std must be positive, got {self.init_std}",
        )
        base = self.mup_base_width
        _require(
            base is None or (base > 0 and base % self.head_size == 0),
            f"mup_base_width {base} must be a multiple of the head size {self.head_size}",
        )

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        """Hidden size of the MLP: 8/3 of the width, so that SwiGLU's three matrices have as many
        parameters as the two of a classic MLP with 4 times the width (Shazeer 2020)."""
        return math.ceil(8 * self.width / 3 / _MLP_MULTIPLE) * _MLP_MULTIPLE

    @property
    def mup_multiplier(self) -> float:
        """The width divided by the muP base width; 1 without muP."""
        return self.width / self.mup_base_width if self.mup_base_width else 1.0

    @property
    def base_std(self) -> float:
        """Standard deviation of the initial weights at the base width: `init_std`, or 0.02 up to
        width 833 and sqrt(1 / (3 width)) above. 0.02 is too large there: BLOOM failed within its
        first thousands of steps with it and took this rule from Megatron-Turing NLG 530B."""
        if self.init_std is not None:
            return self.init_std
        return min(_GPT2_STD, math.sqrt(1 / (3 * (self.mup_base_width or self.width))))

    @property
    def parameters(self) -> int:
        """Number of parameters, embedding and head included, a tied head counted once."""
        attention = 4 * self.width**2 + 2 * self.head_size * self.qk_norm
        mlp = 3 * self.width * self.mlp_width
        blocks = self.layers * (attention + mlp + 2 * self.width)
        tables = (1 if self.tied_head else 2) * self.vocab_size * self.width
        return tables + blocks + self.width


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


SIZES: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "0.15M": ModelConfig(vocab_size=512, width=64, layers=2, heads=4),
        "1M": ModelConfig(vocab_size=2048, width=128, layers=4, heads=4),
        "3M": ModelConfig(vocab_size=2048, width=192, layers=6, heads=6),
        "10M": ModelConfig(vocab_size=8192, width=288, layers=8, heads=9),
        "x1": ModelConfig(vocab_size=8192, width=576, layers=10, heads=9, tied_head=False),
    }
)
"""The lab's models by name; `x1` has 50M parameters. The names are accurate within 15 %. A
vocabulary is as large as a model of that size can learn from the corpus; 8,192 has the longest tail
of rare tokens."""
