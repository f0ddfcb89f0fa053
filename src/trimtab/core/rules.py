"""Rules as functions: the parameters of a rule are its inputs, and it runs only if all are known.

Rules on configs and on the objects of a run (`trimtab.checks`) and observations of an incident
(`trimtab.explain`) differ in where an input comes from and in what they return; this is the rest.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class Missing:
    """Returned in place of a result: the inputs that are not known."""

    names: tuple[str, ...]
    """In the order of the parameters; at least one."""


@dataclass(frozen=True, slots=True)
class RuleFunction(Generic[Result]):
    """A function with its inputs, by the names of its parameters."""

    function: Callable[..., Result]
    needs: tuple[str, ...]
    """Inputs without which it cannot run."""
    uses: tuple[str, ...]
    """Inputs that it can do without: its parameters with a default."""

    @classmethod
    def of(cls, function: Callable[..., Result]) -> "RuleFunction[Result]":
        """Read the inputs of a function from its signature."""
        parameters = inspect.signature(function).parameters.items()
        needs = tuple(name for name, given in parameters if given.default is given.empty)
        uses = tuple(name for name, given in parameters if given.default is not given.empty)
        return cls(function, needs, uses)

    def call(self, find: Callable[[str], Any]) -> Result | Missing:
        """Call the function with the inputs that `find` returns by name; None is unknown."""
        inputs = {name: find(name) for name in self.needs}
        missing = tuple(name for name, value in inputs.items() if value is None)
        if missing:
            return Missing(missing)
        return self.function(**inputs, **{name: find(name) for name in self.uses})
