"""A bug of trimtab must never stop or change a training run.

`Entrance` stands where a training loop calls trimtab: an error that comes that far takes the guard
out of the run. Inside, each component has a `Shield`: what fails there takes only itself out.
"""

import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling

from trimtab.core.errors import NonFiniteRun, RestoreError, RunStopped
from trimtab.core.log import log as log

DELIBERATE = (NonFiniteRun, RestoreError, RunStopped)
"""Errors that a guard raises into a training loop on purpose; every other one is a bug of ours."""


Result = TypeVar("Result")

Function = TypeVar("Function", bound=Callable[..., Any])


def never_compiled(function: Function) -> Function:
    """Keep `torch.compile` out of a function, at no cost while nothing is compiled.

    What turns the compiler off for a call takes five calls itself, and imports it.
    """
    apart = _disable_dynamo(function)

    @wraps(function)
    def choosing(*args: Any, **kwargs: Any) -> Any:
        # The first is True where this very line is traced, the second in a frame that is not.
        if is_dynamo_compiling() or get_eval_frame_callback() is not None:
            return apart(*args, **kwargs)
        return function(*args, **kwargs)

    choosing._torchdynamo_disable = True  # type: ignore[attr-defined]
    return cast("Function", choosing)


class Entrance:
    """Calls code of trimtab for a training loop, and lets none of its errors out."""

    def __init__(self, step_aside: Callable[[str, Exception], None]) -> None:
        self._step_aside = step_aside
        """Takes the guard out of the run, because of an error in an operation."""

    def __call__(
        self, operation: str, inside: Callable[..., Result], /, *args: Any, **kwargs: Any
    ) -> Result | None:
        """Return what `inside` returns, or None if it fails; raise what is meant for the user."""
        try:
            return inside(*args, **kwargs)
        except DELIBERATE:
            raise
        except Exception as error:  # the very point: no error of ours gets out
            self._step_aside(operation, error)
            return None


class Shield:
    """Catches what one part of the guard raises, reports it once, and takes that part down.

    Each part has a shield of its own: what fails in telemetry leaves loss, norm and gate working.
    """

    def __init__(self, part: str, consequence: str) -> None:
        self.part = part
        """What the shield stands in front of, as the log names it."""
        self._consequence = consequence
        self.is_down = False
        """Whether something was caught: from then on this part does nothing."""
        self._listeners: list[Callable[[str, str, str], None]] = []

    def on_catch(self, listener: Callable[[str, str, str], None]) -> None:
        """Call this with part, place and error when something is caught."""
        self._listeners.append(listener)

    def guarding(self, place: str) -> "_Guarding":
        """Run code of trimtab in this context; no exception of it reaches the user."""
        return _Guarding(self, place)

    def call(self, place: str, function: Callable[..., Result], *args: Any) -> Result | None:
        """Return what a function of trimtab returns, or None if it fails.

        The same as `guarding` in every step, where a context would cost four calls.
        """
        try:
            return function(*args)
        except DELIBERATE:
            raise
        except Exception as error:
            self.catch(place, error)
            return None

    def catch(self, place: str, error: Exception) -> None:
        """Handle what was raised where `guarding` cannot stand."""
        is_first = not self.is_down
        self.is_down = True
        if not is_first:
            return
        trace = "".join(traceback.format_exception(error)).strip()
        log.error(
            "trimtab: %s failed in %s: %s; training continues\n%s",
            self.part,
            place,
            self._consequence,
            trace,
        )
        for listener in self._listeners:
            try:
                listener(self.part, place, trace)
            except Exception:  # even reporting may fail
                log.exception("trimtab could not report its failure")


class _Guarding:
    """A context of a shield; a class, because one from a generator costs three times as much."""

    __slots__ = ("_place", "_shield")

    def __init__(self, shield: Shield, place: str) -> None:
        self._shield = shield
        self._place = place

    def __enter__(self) -> None:
        """Nothing is to be prepared."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Catch what was raised, unless it is meant to end the program."""
        if isinstance(error, Exception) and not isinstance(error, DELIBERATE):
            self._shield.catch(self._place, error)
            return True
        return False


class Shields:
    """One shield for each part of the guard that can fail alone."""

    def __init__(self) -> None:
        self.numbers = Shield("loss and gradient norm", "the guard steps aside on all ranks")
        self.telemetry = Shield("telemetry", "it stops, the rest continues")
        self.hashes = Shield("checksums", "they are not recorded, the rest continues")
        self.activations = Shield("activations", "they are not recorded, the rest continues")
        self.user = Shield("user signals", "they are not recorded, the rest continues")
        self.host = Shield("journal", "nothing is recorded any more, the rest continues")
        self.observer = Shield("observer", "it is not heard any more, the rest continues")
        self.batches = Shield("batches", "they are not measured any more, the rest continues")
        self.checkpoints = Shield("checkpoints", "they are not judged any more, the rest continues")
        self.resume = Shield("resume audit", "this resume is not audited, the rest continues")
        self.gate = Shield("gate", "trimtab protects no longer; it keeps watching")
        self.reports = Shield(
            "reports of undos", "they are not journalled any more, the rest continues"
        )
        self.experiments = Shield("experiments", "no more are made, the rest continues")
        self.trials = Shield("trials of states", "no state is tried any more, the rest continues")
        self.proposals = Shield("proposals", "nothing is proposed any more, the rest continues")
        self.views = Shield("views of the guard", "it is not shown, the rest continues")
        self.recovery = Shield("snapshots", "the run cannot go back, the rest continues")

    def __iter__(self) -> Iterator[Shield]:
        return iter(vars(self).values())

    @property
    def failed(self) -> list[str]:
        return [shield.part for shield in self if shield.is_down]
