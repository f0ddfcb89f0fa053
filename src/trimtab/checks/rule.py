"""CheckRule: one thing that can be wrong with a run before its first step.

A rule is a function whose parameters name its inputs, and it runs when all inputs without a default
are known. Its docstring says why the fault does harm. The inputs of rules on configs (TT...) are
settings of a `TrainingPlan`, those of rules on real objects (PF...) are `Measurements`:

    @error("TT004", "Adam's epsilon swamps the second moment", only=ADAM, ...)
    def huge_epsilon(epsilon: float) -> Fault | None:

    @warning("PF035", "The clip threshold does not fit the gradients", ...)
    def clip(short_run: ShortRun, inputs: Inputs) -> Fault | str:
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

from trimtab.core import text
from trimtab.core.rules import Missing, RuleFunction


class Level(IntEnum):
    """How much damage is to be expected."""

    ADVICE = 0
    """Cheap insurance, or a choice that published runs have moved away from."""
    WARNING = 1
    """Known to cost quality, time or a run; some runs got away with it."""
    ERROR = 2
    """The run fails, learns nothing, or cannot be saved when something else fails."""


class Shown(StrEnum):
    """The evidence for a rule."""

    LAB = "shown in the lab"
    """The fix was better in at least 9 of 10 seeds of the lab's smallest model."""
    LITERATURE = "literature only"
    """Reported by others, or measured outside the lab; the source says which."""


class NotMeasured(Exception):
    """Raised for an input that these objects do not allow; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule found."""

    what: str
    """What is wrong, with the numbers of this run."""
    fix: Mapping[str, Any] = field(default_factory=dict)
    """The smallest change that fixes it: settings of the plan and their values."""
    how: str = ""
    """What to do, where no setting does it."""
    level: Level | None = None
    """Where it depends on the numbers; None is the level of the rule."""


Found = Fault | Missing | str | None
"""What a rule returns: a fault, inputs without which it cannot tell, or what it saw that is as it
should be, if there is anything to say about that."""

ADAM: Mapping[str, Any] = MappingProxyType({"adam": True})
"""For rules on what only Adam and its family have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRule:
    """One thing that can be wrong with a run before its first step."""

    id: str
    """TT (configs) or PF (objects) and three digits; never reused."""
    level: Level
    """Level of what it finds, unless the fault has its own."""
    title: str
    """The problem, as it is reported."""
    mechanism: str
    """Why it does harm, in one sentence."""
    source: str
    """Who found it, or where the thresholds come from."""
    shown: Shown
    only: Mapping[str, Any]
    """Properties that a plan must have for the rule to apply."""
    cannot_see: str
    """What the rule does not inspect; empty for rules on configs."""
    function: RuleFunction[Found]

    def concerns(self, subject: object) -> bool:
        """Return whether the rule applies to a plan, as far as is known."""
        found = ((getattr(subject, name), wanted) for name, wanted in self.only.items())
        return all(value is None or value == wanted for value, wanted in found)

    def run(self, subject: object) -> Found:
        """Run the rule on a plan or on measurements: its inputs are attributes of them.

        Raises NotMeasured for a measurement that cannot be made.
        """
        find = partial(getattr, subject)
        # A rule on fp16 alone must not speak about a plan whose precision is not known.
        if any(find(name) is None for name in self.only):
            names = (*self.only, *self.function.needs)
            return Missing(tuple(name for name in names if find(name) is None))
        return self.function.call(find)


def _rule(
    level: Level,
    id: str,
    title: str,
    *,
    source: str,
    shown: Shown = Shown.LITERATURE,
    only: Mapping[str, Any] = MappingProxyType({}),
    cannot_see: str = "",
) -> Callable[[Callable[..., Found]], CheckRule]:
    """Turn a function into a rule: its parameters are the inputs, its docstring the mechanism."""

    def make(function: Callable[..., Found]) -> CheckRule:
        return CheckRule(
            id=id,
            level=level,
            title=title,
            mechanism=" ".join((function.__doc__ or title).split()),
            source=source,
            shown=shown,
            only=only,
            cannot_see=cannot_see,
            function=RuleFunction.of(function),
        )

    return make


error, warning, advice = (
    partial(_rule, level) for level in (Level.ERROR, Level.WARNING, Level.ADVICE)
)


def brief(value: float) -> str:
    """Return a setting as people write it: 0.95, 3e-4, 1e-8."""
    if value != 0 and math.isfinite(value) and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.6g}"


def amount(value: float) -> str:
    """Return a count in a few characters: 850, 12k, 4.2M, 8B."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            scale = 1e3 if name == "k" else unit
            return f"{value / scale:.3g}{name}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"


def hours(seconds: float) -> str:
    """Return a duration: 40 s, 25 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"


listed = partial(text.listed, most=3)
"""Returns names of parameters or layers on one line, three of them by themselves."""
