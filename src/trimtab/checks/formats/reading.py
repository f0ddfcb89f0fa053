"""What every format gives and needs: a ConfigReading, the Dialect of its fixes, typed Values.

What a format calls the settings of a plan is in the TOML file beside its reader, a `FormatTable`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib.resources import files
from typing import Any, get_type_hints

from trimtab.checks.plan import Shape, TrainingPlan
from trimtab.core.errors import UnreadablePlan

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class Values:
    """Settings of one format; what is not set has the format's default, or is None."""

    def __init__(
        self, given: Mapping[str, Any], source: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.given = given
        self.source = source
        self._defaults = defaults or {}

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def raw(self, name: str) -> Any:
        return self.given.get(name, self._defaults.get(name))

    def number(self, name: str) -> float | None:
        """Return the value as a number; text such as 2_000 or 1e-4 is one."""
        value = self.raw(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        try:
            return float(value)
        except (TypeError, ValueError):
            raise self._wrong(name, value, "a number") from None

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        try:
            return int(value)
        except (OverflowError, ValueError):  # infinite, or NaN
            raise self._wrong(name, value, "a whole number") from None

    def truth(self, name: str) -> bool | None:
        """Return the value as yes or no; a flag without a value is yes."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in _TRUE or text == "":
            return True
        if text in _FALSE:
            return False
        raise self._wrong(name, value, "true or false")

    def text(self, name: str) -> str | None:
        """Return the value as text in lower case."""
        value = self.raw(name)
        return None if value is None else str(value).lower()

    def _wrong(self, name: str, value: Any, wanted: str) -> UnreadablePlan:
        return UnreadablePlan(f"{self.source}: {name} is {value!r}, which is not {wanted}")


Spelling = Callable[[Any], str]


class Syntax(StrEnum):
    """The file syntaxes in which several formats are written."""

    JSON = "json"
    TOML = "toml"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Where a config came from, and what else is known about it."""

    source: str
    lines: Mapping[str, int] = field(default_factory=dict)
    """Setting, as the format names it, to its line."""
    syntax: Syntax = Syntax.JSON
    steps: int | None = None
    """The number of steps, for a format that may not hold it."""


_INSTRUCTIONS = {
    "cross_entropy_fp32": "compute the cross-entropy from fp32 logits",
    "decay_embeddings": "give embeddings a parameter group with weight_decay 0",
    "decay_norms": "give norms and biases a parameter group with weight_decay 0",
    "depth_scaled_init": "divide the init of attention and MLP outputs by sqrt(2 * layers)",
    "embedding_norm": "put a norm after the embedding",
    "fp8_output_layer": "leave the output layer out of fp8",
    "gradient_sum": "sum and reduce gradients in fp32",
    "masks_packed": "let attention stay within each packed text: variable-length flash attention",
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
class FormatTable:
    """The names, defaults and fixes of one format."""

    marks: frozenset[str]
    """Names by which the format is recognised."""
    aliases: Mapping[str, str]
    """Setting to the name that other versions of the format have for it."""
    defaults: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    """The format's name of a schedule to its shape."""
    same: Mapping[str, str]
    """Field of the plan to the one setting that is read, shown and written for it."""
    names: Mapping[str, tuple[str, ...]]
    """Field of the plan to the settings that set it; the line of the first one found is shown."""
    fixes: Mapping[str, Any]
    """Field of the plan to what to write: settings with their values, or a text."""

    @classmethod
    def load(cls, format: str) -> "FormatTable":
        text = files("trimtab.checks.formats").joinpath(f"{format}.toml").read_text("utf-8")
        table = tomllib.loads(text)
        same = table["same"]
        return cls(
            marks=frozenset(table["marks"]),
            aliases=table.get("aliases", {}),
            defaults=table["defaults"],
            shapes={name: Shape(shape) for name, shape in table["shapes"].items()},
            same=same,
            names={field: (name,) for field, name in same.items()}
            | {field: tuple(names) for field, names in table["computed"].items()},
            fixes={field: {name: "$value"} for field, name in same.items()} | table["fixes"],
        )

    def read_same(self, values: Values) -> dict[str, Any]:
        """Return the fields that are one setting each, in the type that the plan has for them."""
        read = {int | None: values.whole, float | None: values.number, bool | None: values.truth}
        types = get_type_hints(TrainingPlan)
        return {field: read[types[field]](name) for field, name in self.same.items()}

    def find_lines(self, lines: Mapping[str, int]) -> dict[str, int]:
        """Return the line of each field of the plan that the file sets."""
        found = {
            field: next((lines[name] for name in names if name in lines), None)
            for field, names in self.names.items()
        }
        return {field: line for field, line in found.items() if line is not None}

    def spellings(self, write: Callable[[str, Any], str], between: str) -> dict[str, Spelling]:
        """Return how each field is written, by a function that writes one setting."""
        return {field: partial(_spell, fix, write, between) for field, fix in self.fixes.items()}


def _spell(fix: Any, write: Callable[[str, Any], str], between: str, value: Any) -> str:
    if isinstance(fix, str):
        return fix
    return between.join(write(name, _filled(part, value)) for name, part in fix.items())


def _filled(part: Any, value: Any) -> Any:
    if isinstance(part, dict):
        return {name: _filled(inner, value) for name, inner in part.items()}
    return value if part == "$value" else not value if part == "$not value" else part


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

    def write(self, setting: str, value: Any) -> FixLine | str:
        """Return the line that sets it, or a sentence if the format has no such setting."""
        spelling = self.dialect.spellings.get(setting)
        if spelling is None:
            return _INSTRUCTIONS.get(setting, f"set {setting} to {value}")
        return FixLine(text=spelling(value), line=self.lines.get(setting))
