"""ConfigRule: one thing that can be wrong with a plan.

A rule is a function whose parameters name its inputs. It runs when all inputs without a default are
known:

    @rule("TT004", Level.ERROR, "Adam's epsilon swamps the second moment", only=ADAM, ...)
    def huge_epsilon(epsilon: float) -> Fault | None:
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

from trimtab.checks.plan import TrainingPlan


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


@dataclass(frozen=True, slots=True)
class Change:
    """A setting and the value that it should have."""

    field: str
    value: Any


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule found in a plan."""

    what: str
    """What is wrong, with the numbers of this plan."""
    fix: tuple[Change, ...] = ()
    """The smallest change that fixes it."""
    how: str = ""
    """What to do, where no setting does it."""


RuleFunction = Callable[..., Fault | None]

ADAM: Mapping[str, Any] = MappingProxyType({"adam": True})
"""For rules on what only Adam and its family have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRule:
    """One thing that can be wrong with a plan."""

    id: str
    """TT and three digits; never reused."""
    level: Level
    title: str
    mechanism: str
    """Why it does harm, in one sentence."""
    source: str
    """Who found it."""
    shown: Shown
    only: Mapping[str, Any]
    """Properties that a plan must have for the rule to apply."""
    check: RuleFunction
    needs: tuple[str, ...]
    """What must be known for the rule to run."""
    uses: tuple[str, ...]
    """Optional inputs of the rule."""

    def concerns(self, plan: TrainingPlan) -> bool:
        """Whether the rule applies to such a plan, as far as is known."""
        found = ((getattr(plan, name), wanted) for name, wanted in self.only.items())
        return all(value is None or value == wanted for value, wanted in found)

    def missing(self, plan: TrainingPlan) -> tuple[str, ...]:
        """The inputs that the rule needs and the plan does not have."""
        names = (*self.only, *self.needs)
        return tuple(name for name in names if getattr(plan, name) is None)

    def run(self, plan: TrainingPlan) -> Fault | None:
        """Run the rule on a plan that has all its inputs."""
        return self.check(**{name: getattr(plan, name) for name in self.needs + self.uses})


def rule(
    id: str,
    level: Level,
    title: str,
    *,
    mechanism: str,
    source: str,
    only: Mapping[str, Any] = MappingProxyType({}),
    shown: Shown = Shown.LITERATURE,
) -> Callable[[RuleFunction], ConfigRule]:
    """Turn a function into a rule; its parameters are the inputs."""

    def make(check: RuleFunction) -> ConfigRule:
        parameters = inspect.signature(check).parameters
        return ConfigRule(
            id=id,
            level=level,
            title=title,
            mechanism=mechanism,
            source=source,
            shown=shown,
            only=only,
            check=check,
            needs=tuple(n for n, p in parameters.items() if p.default is p.empty),
            uses=tuple(n for n, p in parameters.items() if p.default is not p.empty),
        )

    return make
