"""ModelConfig: the shape of a model and the options that keep it stable; SIZES: the named ones.

Parameters are counted with the embedding and the head; a tied head is the embedding itself and
counts once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trimtab.core.errors import ConfigError

_GPT2_STD = 0.02
"""Init deviation of GPT-2, and the default of Megatron-LM."""

_MLP_MULTIPLE = 32
"""The MLP's width is rounded up to a multiple of this, so that matrix kernels get whole tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a GPT and its options; the defaults are the safe ones below 1B parameters."""

    vocab_size: int
    """Number of tokens."""

    width: int
    """Size of the residual stream."""

    layers: int
    """Number of blocks."""

    heads: int
    """Attention heads; each has `width / heads` channels."""

    tied_head: bool = True
    """Whether the output layer is the embedding, transposed. Saves a third of a tiny model."""

    post_norm: bool = False
    """Normalise behind each residual sum, not in front of each layer. The order of the first
    transformer: deep models hardly learn with it, which is why it is here."""

    embedding_norm: bool = False
    """A norm behind the embedding (BLOOM). For models past about 1B parameters."""

    qk_norm: bool = False
    """Normalise queries and keys, which bounds attention logits by the square root of the head
    size times the gains (ViT-22B). For models past about 1B parameters."""

    z_loss: float = 0.0
    """Weight of the mean of (log Z)^2 in the loss; PaLM used 1e-4. 0 is off."""

    init_std: float | None = None
    """Deviation of the initial weights; None takes it from the width, see `base_std`."""

    mup_base_width: int | None = None
    """The width at which learning rate and init were tuned (muP); None is off. Models grow by
    heads of the same size, so attention needs no other scale."""

    checkpoint_activations: bool = False
    """Compute each block a second time in the backward pass instead of keeping its activations."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(
            self.width % (2 * self.heads) == 0,
            f"width {self.width} must be an even multiple of heads {self.heads}: "
            "rotary positions turn channels in pairs",
        )
        _require(
            math.isfinite(self.z_loss) and self.z_loss >= 0,
            f"z_loss must be finite and not negative, got {self.z_loss}",
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
        """Channels of one attention head."""
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        """Hidden size of the MLP: 8/3 of the width, so that SwiGLU's three matrices weigh as much
        as the two of a classic MLP of 4 times the width (Shazeer 2020)."""
        return math.ceil(8 * self.width / 3 / _MLP_MULTIPLE) * _MLP_MULTIPLE

    @property
    def mup_multiplier(self) -> float:
        """How many times wider than its muP base the model is; 1 without muP."""
        return self.width / self.mup_base_width if self.mup_base_width else 1.0

    @property
    def base_std(self) -> float:
        """Init deviation at the base width: `init_std`, or 0.02 up to width 833 and
        sqrt(1 / (3 width)) above, where 0.02 is too large: BLOOM did not get past its first
        thousands of steps with it, and took this rule from Megatron-Turing NLG 530B."""
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
        return tables + blocks + self.width * (1 + self.embedding_norm)


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
"""The lab's models by name; `x1` has 50M parameters. The names hold within 15 %. A vocabulary is as
large as the corpus can teach a model of that size; 8,192 has the longest tail of rare tokens."""
