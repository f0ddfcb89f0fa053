"""ConfigReading: a config as it was read, and how to write a setting in its syntax."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trimtab.checks.plan import TrainingPlan
from trimtab.checks.rule import Change

Spelling = Callable[[Any], str]


class Syntax(StrEnum):
    """The file syntaxes in which several formats are written."""

    JSON = "json"
    TOML = "toml"
    YAML = "yaml"


_INSTRUCTIONS = {
    "cross_entropy_fp32": "compute the cross-entropy from fp32 logits",
    "decay_embeddings": "give embeddings a parameter group with weight_decay 0",
    "decay_norms": "give norms and biases a parameter group with weight_decay 0",
    "depth_scaled_init": "divide the init of attention and MLP outputs by sqrt(2 * layers)",
    "embedding_norm": "put a norm after the embedding",
    "fp8_output_layer": "leave the output layer out of fp8",
    "gradient_sum": "sum and reduce gradients in fp32",
    "nan_check": "look for NaN in loss and gradient norm at every step",
    "norm": "put the norms in front of attention and MLP (pre-norm)",
    "optimizer_state": "keep Adam's moments in fp32",
    "qk_norm": "normalise queries and keys in attention",
    "restores_data": "save the loader's position with the checkpoint",
    "softmax_fp32": "take the attention softmax in fp32",
    "token_weighted_loss": "divide the summed loss by all tokens of the step",
    "weights": "keep fp32 master weights",
    "z_loss": "add 1e-5 * mean(log Z ** 2) to the loss",
}
"""What to do in the code, where a format has no setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The syntax of one format."""

    name: str
    """What the format is called in reports."""
    spellings: Mapping[str, Spelling]
    """How each field that the format can set is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixLine:
    """One line of a fix, as the user would write it."""

    text: str
    line: int | None
    """Where that setting is now; None if it is not in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReading:
    """A config as it was read."""

    source: str
    """The file, or the type of the object."""
    dialect: Dialect
    plan: TrainingPlan
    lines: Mapping[str, int] = field(default_factory=dict)
    """Field of the plan to the line of the file that sets it."""
    notes: tuple[str, ...] = ()
    """What was left out, assumed or not understood, in plain sentences."""
    off: tuple[str, ...] = ()
    """Rules that the config itself switches off."""

    def write(self, change: Change) -> FixLine | str:
        """Return the line that makes a change, or a sentence if the format has no setting for
        it."""
        spelling = self.dialect.spellings.get(change.field)
        if spelling is None:
            return _INSTRUCTIONS.get(change.field, f"set {change.field} to {change.value}")
        return FixLine(text=spelling(change.value), line=self.lines.get(change.field))
