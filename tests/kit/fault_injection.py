"""Every function of the guard is made to raise, one at a time, while a run goes on.

targets()            every function, method and property of trimtab.live, .state and .journal
called_targets(mode) those that a run calls once a fault is armed; the others cannot fail in it
inject(...)          one run with one function that raises: did the training loop notice?

Functions that have no name in a module or class (closures, lambdas) are not reached.
"""

import enum
import fnmatch
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType, ModuleType
from typing import Any

from tests.kit.watched_run import FIRST_SECONDS, LIMIT_SECONDS, Hang, RunEnd, differences, run
from trimtab.core.errors import NonFiniteRun, RestoreError, RunStopped

PACKAGES = ("trimtab.live", "trimtab.state", "trimtab.journal")

ENTRANCE = "an entrance: nothing stands in front of it"
LOADER = "it calls the user's loader"
ALLOWED = {
    "trimtab.live.guard.Guard.record": ENTRANCE,
    "trimtab.live.guard.Guard.clip_grad_norm_": ENTRANCE,
    "trimtab.live.guard.Guard.event": ENTRANCE,
    "trimtab.live.guard.LoopServices.steps": ENTRANCE,
    "trimtab.live.guard.LoopServices.step_iterator": ENTRANCE,
    "trimtab.live.guard.LoopServices._clip": "torch's own clipping, which the loop asks for",
    "trimtab.live.guard.Guard.skip": ENTRANCE,
    "trimtab.live.guard.Guard.undo": ENTRANCE,
    "trimtab.live.guard.Guard.state_dict": ENTRANCE,
    "trimtab.live.guard.Guard.load_state_dict": "a state that cannot be loaded must be said",
    "trimtab.live.guard.Guard.checkpoint": "without checkpoints it is a ConfigError",
    "trimtab.live.guard.Guard.incidents": ENTRANCE,
    "trimtab.live.guard.LoopServices.data_position": ENTRANCE,
    "trimtab.live.guard.Guard.close": ENTRANCE,
    "trimtab.live.guard.LoopServices.__enter__": ENTRANCE,
    "trimtab.live.guard.LoopServices.__exit__": ENTRANCE,
    # Trainers with a loop of their own call these.
    "trimtab.live.step_iterator.StepIterator.next_step": ENTRANCE,
    "trimtab.live.step_iterator.StepIterator.end_step": ENTRANCE,
    "trimtab.live.step_iterator.StepIterator.leave": ENTRANCE,
    "trimtab.live.step_iterator.CheckpointBoundary.request": "what guard.checkpoint calls",
    "trimtab.live.step_iterator.CheckpointBoundary.save_if_wanted": "it saves what is the user's",
    # Torch calls these.
    "trimtab.live.loop.skips.Backward.__call__": ENTRANCE,
    "trimtab.live.measure.activations._Hook.__call__": ENTRANCE,
    "trimtab.live.recover.scaler_watch.ScalerWatch.__call__": ENTRANCE,
    "trimtab.live.loop.step_hooks._Before.__call__": ENTRANCE,
    "trimtab.live.loop.step_hooks._After.__call__": ENTRANCE,
    "trimtab.live.shield.*": "it catches what others raise; nothing catches what it raises",
    "trimtab.live.measure.step_loop.Step.__iter__": "the user's loop calls it, for a micro-batch",
    "trimtab.live.measure.step_loop.Step.__init__": "without it there is no step to give",
    "trimtab.live.measure.step_loop.Step.load": LOADER,
    "trimtab.live.measure.step_loop.StepLoop.next_step": LOADER,
    "trimtab.live.measure.step_loop.LoaderSource.next_batch": LOADER,
    "trimtab.state.checkpoints.data_cursor.DataCursor._count": LOADER,
}
"""Functions whose exceptions may reach the user, as patterns, with the reason.

What the user's loader raises must pass, so what is raised beside it passes as well: a batch that
was fetched would be lost otherwise.
"""

GATE_IS_LOST = re.compile(
    r"protects? no longer|not protected|no longer protected|steps? aside|without trimtab"
)
"""How the log says that bad steps reach the weights from now on."""
UNDO_IS_LOST = re.compile(
    rf"{GATE_IS_LOST.pattern}|cannot go back|nothing is undone|not undone|not restored"
)
"""How the log says that nothing is undone any more."""


class PlantedError(Exception):
    """What a broken function raises."""


class PlantedRuntimeError(RuntimeError):
    """The same, as torch raises it: code that catches RuntimeError of torch must not be fooled."""


class PlantedMemoryError(MemoryError):
    """The same, for want of memory."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How a function fails."""

    error: type[Exception] = PlantedError
    is_once: bool = False
    """Whether only the first call raises."""
    is_late: bool = False
    """Whether it raises after it has done its work."""


FAULTS = {
    "always": Fault(),
    "once": Fault(is_once=True),
    "late": Fault(is_late=True),
    "runtime": Fault(error=PlantedRuntimeError),
    "memory": Fault(error=PlantedMemoryError),
}


@dataclass(kw_only=True)
class Trigger:
    """Decides at each call of a broken function whether it raises."""

    fault: Fault
    is_armed: bool = False
    num_raised: int = 0

    def pull(self) -> None:
        if self.is_armed and not (self.fault.is_once and self.num_raised):
            self.num_raised += 1
            raise self.fault.error("planted")


# Targets.

NOT_PLANTED = frozenset(
    {
        "__init_subclass__",
        "__class_getitem__",
        "__subclasshook__",
        "__new__",
        "__del__",
        "__setattr__",
        "__delattr__",
        "__getattribute__",
        "__annotate__",
        "__annotate_func__",
        "__replace__",
        "__getstate__",
        "__setstate__",
    }
)
"""Methods that belong to Python rather than to trimtab."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """A function, method or property that can be made to raise."""

    name: str
    owner: ModuleType | type
    attribute: str
    original: Any

    @property
    def code(self) -> Any:
        """The code that runs when it is called; None if it may come from a cache."""
        function = self.original
        if isinstance(function, property):
            function = function.fget
        elif isinstance(function, functools.cached_property):
            function = function.func
        elif isinstance(function, classmethod | staticmethod):
            function = function.__func__
        if isinstance(function, functools._lru_cache_wrapper):
            return None
        return getattr(inspect.unwrap(function), "__code__", None)


def targets() -> list[Target]:
    """Every function, method and property of the packages, by name."""
    found: list[Target] = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        names = [m.name for m in pkgutil.walk_packages(root.__path__, f"{package}.")]
        for name in [package, *names]:
            found += _targets_of(importlib.import_module(name), name, name)
    return sorted(found, key=lambda target: target.name)


def _targets_of(owner: ModuleType | type, name: str, module: str) -> Iterator[Target]:
    for attribute, value in list(vars(owner).items()):
        whole = f"{name}.{attribute}"
        if inspect.isclass(value):
            is_own = value.__module__ == module and value.__qualname__.endswith(attribute)
            if is_own and not _is_left_out(value):
                yield from _targets_of(value, whole, module)
        elif attribute not in NOT_PLANTED and _can_raise(value, owner, module):
            yield Target(name=whole, owner=owner, attribute=attribute, original=value)


def _is_left_out(kind: type) -> bool:
    """Whether a class has no code of its own that runs."""
    return getattr(kind, "_is_protocol", False) or issubclass(kind, BaseException | enum.Enum)


def _can_raise(value: Any, owner: ModuleType | type, module: str) -> bool:
    if isinstance(value, property | functools.cached_property | classmethod | staticmethod):
        return inspect.isclass(owner)
    is_function = inspect.isfunction(value) or (callable(value) and hasattr(value, "__wrapped__"))
    # A module has the functions that it imports, too; those are planted where they are defined.
    return is_function and (inspect.isclass(owner) or value.__module__ == module)


def called_targets(mode: str) -> list[Target]:
    """The targets that a run calls once a fault would be armed."""
    called: set[Any] = set()
    is_armed = threading.Event()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and is_armed.is_set():
            called.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run(mode, arm=is_armed.set, disarm=is_armed.clear, seconds=FIRST_SECONDS)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [target for target in targets() if target.code is None or target.code in called]


def sample(found: Sequence[Target], count: int, patterns: Sequence[str] = ()) -> list[Target]:
    """About `count` of the targets, and all whose name fits one of the patterns.

    Each k-th one; where that begins depends on the list, so that a change of the code moves it.
    """
    stride = max(1, len(found) // max(1, count))
    start = zlib.crc32(repr([target.name for target in found]).encode()) % stride
    wanted = [
        target for target in found if any(fnmatch.fnmatch(target.name, one) for one in patterns)
    ]
    return sorted({*found[start::stride], *wanted}, key=lambda target: target.name)


@contextmanager
def planted(target: Target, trigger: Trigger) -> Iterator[None]:
    """Put a broken function in the place of a target, wherever trimtab has its name."""
    broken = _broken(target, trigger)
    if inspect.isclass(target.owner):
        holders: list[tuple[Any, str]] = [(target.owner, target.attribute)]
    else:
        modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] == "trimtab"]
        holders = [
            (module, name)
            for module in modules
            for name, value in list(vars(module).items())
            if value is target.original
        ]
    for holder, name in holders:
        setattr(holder, name, broken)
    try:
        yield
    finally:
        for holder, name in holders:
            setattr(holder, name, target.original)


def _broken(target: Target, trigger: Trigger) -> Any:
    original = target.original
    if isinstance(original, property):
        assert original.fget is not None
        return property(_raising(original.fget, trigger), original.fset, original.fdel)
    if isinstance(original, functools.cached_property):
        cached = functools.cached_property(_raising(original.func, trigger))
        assert inspect.isclass(target.owner)
        cached.__set_name__(target.owner, target.attribute)
        return cached
    if isinstance(original, classmethod | staticmethod):
        return type(original)(_raising(original.__func__, trigger))
    return _raising(original, trigger)


def _raising(function: Callable[..., Any], trigger: Trigger) -> Callable[..., Any]:
    """Wrap a function; a generator or a context that fails late does so at its end."""
    if not trigger.fault.is_late:

        @functools.wraps(function)
        def early(*args: Any, **kwargs: Any) -> Any:
            trigger.pull()
            return function(*args, **kwargs)

        return early
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from function(*args, **kwargs)
            trigger.pull()

        return generator
    if inspect.isgeneratorfunction(inspect.unwrap(function)):

        @contextmanager
        def context(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with function(*args, **kwargs) as value:
                yield value
            trigger.pull()

        return context

    @functools.wraps(function)
    def late(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        trigger.pull()
        return result

    return late


# Verdicts.


class Outcome(StrEnum):
    """What became of a run in which a function of trimtab raised."""

    HELD = "held"
    """It came to its end with the bits of a run without a fault."""
    RAISED = "raised"
    """An exception of trimtab reached the loop."""
    ENDED = "ended"
    """Trimtab ended the run deliberately: the exception says why."""
    OTHER_BITS = "other bits"
    HUNG = "hung"
    NOT_CALLED = "not called"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one broken function did to a run."""

    target: str
    outcome: Outcome
    place: str = ""
    """The call of the loop that raised or hung."""
    error: str = ""
    has_nan: bool = False
    """Whether the bad step has reached the weights."""
    is_announced: bool = False
    """Whether the log says that the protection is lost which would have kept the bits."""
    differs: tuple[str, ...] = ()
    """What has other bits."""
    elsewhere: tuple[str, ...] = ()
    """Exceptions that ended a thread or a finalizer."""

    @property
    def is_allowed(self) -> bool:
        """Whether the exceptions of this function may reach the user."""
        return allowed_reason(self.target) is not None

    def breaks_promise(self, mode: str) -> bool:
        """Whether a user would have lost something without being told, or the run itself."""
        if self.outcome in (Outcome.HELD, Outcome.NOT_CALLED):
            return False
        if self.outcome is Outcome.RAISED:
            return not self.is_allowed
        if self.outcome is Outcome.HUNG or mode == "observe":
            return True
        return self.outcome is Outcome.OTHER_BITS and not self.is_announced


def allowed_reason(name: str) -> str | None:
    """Why the exceptions of a function may reach the user; None if they may not."""
    return next((why for pattern, why in ALLOWED.items() if fnmatch.fnmatch(name, pattern)), None)


def reference(mode: str) -> RunEnd:
    """The run without a fault; raises AssertionError if the guard changes what is trained."""
    whole = run(mode, seconds=FIRST_SECONDS)
    assert whole.error is None, f"{whole.place}: {whole.error!r}"
    if mode != "recover":  # what it undoes, no other run can
        bare = run(None, is_bad=mode != "observe", seconds=FIRST_SECONDS)
        assert bare.error is None
        assert bare.bits == whole.bits, differences(bare, whole)
    return whole


def inject(
    target: Target, fault: Fault, mode: str, whole: RunEnd, seconds: float = LIMIT_SECONDS
) -> Verdict:
    """Train with one broken function; `whole` is the run without a fault."""
    trigger = Trigger(fault=fault)

    def arm() -> None:
        trigger.is_armed = True

    def disarm() -> None:
        trigger.is_armed = False

    with planted(target, trigger):
        end = run(mode, arm=arm, disarm=disarm, seconds=seconds)
    return Verdict(
        target=target.name,
        outcome=_outcome(end, whole, is_called=trigger.num_raised > 0),
        place=end.place,
        error="" if end.error is None else f"{type(end.error).__name__}: {end.error}"[:300],
        has_nan=end.has_nan,
        is_announced=_is_announced(end, whole),
        differs=differences(end, whole) if end.error is None else (),
        elsewhere=tuple(end.elsewhere),
    )


def _outcome(end: RunEnd, whole: RunEnd, *, is_called: bool) -> Outcome:
    if isinstance(end.error, Hang):
        return Outcome.HUNG
    if isinstance(end.error, NonFiniteRun | RestoreError | RunStopped):
        return Outcome.ENDED
    if end.error is not None:
        return Outcome.RAISED
    if not is_called:
        return Outcome.NOT_CALLED
    return Outcome.HELD if end.bits == whole.bits else Outcome.OTHER_BITS


def _is_announced(end: RunEnd, whole: RunEnd) -> bool:
    wanted = GATE_IS_LOST if end.has_nan else UNDO_IS_LOST
    fresh = set(end.log) - set(whole.log)
    return any(wanted.search(line.split("\n")[0]) for line in fresh)
