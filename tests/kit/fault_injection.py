"""Every function of the guard is made to raise, one at a time, while a run goes on.

targets()            every function, method and property of trimtab.live, .state and .journal
called_targets(mode) those that a run calls after ARMED_AT; the others cannot fail in it
inject(...)          one run with one function that raises: did the training loop notice?

The loop is a user's: a loader, record, clip, step, an event, a checkpoint, a skip, an undo, close,
and two steps after that without a guard. Functions that have no name in a module or class
(closures, lambdas) are not reached.
"""

import contextlib
import enum
import fnmatch
import functools
import hashlib
import importlib
import inspect
import logging
import pkgutil
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

import trimtab
from trimtab.core.config import Config
from trimtab.core.errors import NonFiniteRun, RestoreError, RunStopped

PACKAGES = ("trimtab.live", "trimtab.state", "trimtab.journal")
MODES = ("observe", "protect", "recover")

WATCHED_STEPS = 16
FREE_STEPS = 2
"""Steps after close: a flag that was left on the optimizer shows in them."""
ARMED_AT = 6
EVENT_AT, STATE_AT, NAN_AT, CHECKPOINT_AT, SKIP_AT, UNDO_AT, INCIDENTS_AT = 8, 9, 10, 11, 12, 13, 14

LIMIT_SECONDS = 10.0
"""A run without a fault takes a tenth of a second, on a busy machine perhaps one."""

ALLOWED = {
    "trimtab.live.guard.Guard.record": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.clip_grad_norm_": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.event": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.steps": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.step_iterator": "an entrance of trainers with a loop of their own",
    "trimtab.live.guard.Guard.skip": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.undo": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.state_dict": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.load_state_dict": "a state that cannot be loaded must be said",
    "trimtab.live.guard.Guard.checkpoint": "an entrance; without checkpoints it is a ConfigError",
    "trimtab.live.guard.Guard.incidents": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.data_position": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.close": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.__enter__": "an entrance: nothing stands in front of it",
    "trimtab.live.guard.Guard.__exit__": "an entrance: nothing stands in front of it",
    "trimtab.live.step_iterator.StepIterator.next_step": "an entrance of trainers",
    "trimtab.live.step_iterator.StepIterator.end_step": "an entrance of trainers",
    "trimtab.live.step_iterator.StepIterator.leave": "an entrance of trainers",
    "trimtab.live.loop.step_hooks._Before.__call__": "the pre-hook that torch calls",
    "trimtab.live.loop.step_hooks._After.__call__": "the post-hook that torch calls",
    "trimtab.live.shield.*": "it catches what others raise; nothing catches what it raises",
    "trimtab.live.measure.step_loop.LoaderSource.next_batch": "it calls the user's loader",
    "trimtab.live.measure.step_loop.Step.__iter__": "the user's loop calls it",
    "trimtab.live.measure.step_loop.Step.load": "it calls the user's loader",
    "trimtab.live.measure.step_loop.StepLoop.next_step": "it calls the user's loader",
}
"""Functions whose exceptions may reach the user, as patterns, with the reason.

What the user's loader raises must pass, so what is raised beside it passes as well: a batch that
was fetched would be lost otherwise.
"""

GATE_IS_LOST = re.compile(
    r"protects? no longer|not protected|no longer protected|steps? aside|without trimtab"
)
"""How the log says that bad steps reach the weights from now on."""
UNDO_IS_LOST = re.compile(rf"{GATE_IS_LOST.pattern}|cannot go back|nothing is undone|not undone")
"""How the log says that nothing is undone any more."""


class PlantedError(Exception):
    """What a broken function raises."""


class PlantedRuntimeError(RuntimeError):
    """The same, as torch raises it: code that catches RuntimeError of torch must not be fooled."""


class PlantedMemoryError(MemoryError):
    """The same, for want of memory."""


class Hang(BaseException):
    """The time is up; no Exception, so that no shield catches it."""


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
        run(mode, arm=is_armed.set, disarm=is_armed.clear)
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


# The run.


@dataclass(kw_only=True)
class RunEnd:
    """All that a run leaves behind."""

    bits: dict[str, str] = field(default_factory=dict)
    """Checksums of what was trained, of the random numbers, and of what the loop was told."""
    has_nan: bool = False
    """Whether a weight is not finite."""
    place: str = ""
    """The call in which the loop was when it ended; empty if it came to its end."""
    error: BaseException | None = None
    log: list[str] = field(default_factory=list)
    """Warnings and errors that trimtab has logged."""
    elsewhere: list[str] = field(default_factory=list)
    """Exceptions that ended a thread or a finalizer."""


class Loop:
    """A user's training loop; `place` is the call that it is in."""

    def __init__(self, mode: str | None, folder: Path) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.mode = mode
        self.place = "watch"
        self.told: list[str] = []
        """Everything that the loop got back from a call, where it is the same without a guard."""
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.guard: Any = None
        if mode is not None:
            self.guard = trimtab.watch(
                self.model,
                self.optimizer,
                run_dir=folder,
                mode=mode,
                config=Config().override(
                    {"live.telemetry_every": 3, "live.lag_steps": 1, "recover.snapshot_every": 3}
                ),
                batch_loss=self.loss_of,
                checkpoints=trimtab.Checkpoints(self.model, self.optimizer, run_dir=folder),
            )

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(batch)
        return (output - batch.flip(1)).pow(2).mean()

    def train(self, arm: Callable[[], None], disarm: Callable[[], None], bad: int | None) -> None:
        """Train with the guard, close it, and train on; the loss of the step `bad` is NaN."""
        generator = torch.Generator().manual_seed(1)
        data = [torch.randn(4, 8, generator=generator) for _ in range(WATCHED_STEPS + FREE_STEPS)]
        self.place = "guard.steps"
        watched = data[:WATCHED_STEPS]
        for index, batch in enumerate(self._batches(watched)):
            if index == ARMED_AT:
                arm()
            self._take(index, batch, is_bad=index == bad)
            self.place = "guard.steps"
        if self.guard is not None:
            self.place = "guard.close"
            self.guard.close()
        disarm()
        for batch in data[WATCHED_STEPS:]:
            self.place = "after close"
            self.loss_of(batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.place = ""

    def _batches(self, data: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        if self.guard is None:
            yield from data
        else:
            for step in self.guard.steps(data):
                yield from step

    def _take(self, index: int, batch: torch.Tensor, *, is_bad: bool) -> None:
        guard = self.guard
        self.place = "forward"
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        loss = self.loss_of(batch) * (float("nan") if is_bad else 1.0)
        if guard is not None:
            self.place = "guard.record"
            guard.record(loss=loss, tokens=batch.numel(), batch=batch, accuracy=0.5)
            guard.record(reward=loss.detach())
        self.place = "backward"
        loss.backward()
        self.place = "guard.clip_grad_norm_"
        if guard is None:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        else:
            norm = guard.clip_grad_norm_(1.0)
        self.told.append(f"{index} {float(norm)!r}")
        if guard is not None:
            self._ask(index)
        if is_bad and guard is None:  # the loop itself does what a guard would
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
        elif index != SKIP_AT:
            self.place = "optimizer.step"
            self.optimizer.step()
        self.place = "loop"
        self.optimizer.zero_grad()
        self.schedule.step()

    def _ask(self, index: int) -> None:
        """What a loop asks of its guard now and then."""
        guard = self.guard
        if index == EVENT_AT:
            self.place = "guard.event"
            guard.event("evaluation", accuracy=0.5)
        elif index == STATE_AT:
            self.place = "guard.state_dict"
            assert isinstance(guard.state_dict(), dict)
        elif index == CHECKPOINT_AT:
            self.place = "guard.checkpoint"
            guard.checkpoint()
        elif index == SKIP_AT:
            self.place = "guard.skip"
            guard.skip()
        elif index == UNDO_AT:
            self.place = "guard.undo"
            guard.undo()
        elif index == INCIDENTS_AT:
            self.place = "guard.incidents"
            assert isinstance(guard.incidents, tuple)

    def bits(self) -> dict[str, str]:
        """Checksums of everything that must not depend on the guard."""
        state = {f"model {name}": value for name, value in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer {index} {name}": value for name, value in slots.items()}
        state["torch random numbers"] = torch.get_rng_state()
        found = {name: _checksum(value.numpy().tobytes()) for name, value in state.items()}
        found["rate"] = repr([group["lr"] for group in self.optimizer.param_groups])
        found["random numbers"] = _checksum(repr(random.getstate()).encode())
        legacy = np.random.get_state()  # noqa: NPY002
        found["numpy random numbers"] = _checksum(repr(legacy).encode())
        return found | {"told": repr(self.told)}


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def run(
    mode: str | None,
    *,
    arm: Callable[[], None] = lambda: None,
    disarm: Callable[[], None] = lambda: None,
    is_bad: bool | None = None,
    seconds: float = LIMIT_SECONDS,
) -> RunEnd:
    """Train once; `arm` is called in step ARMED_AT and `disarm` when the guard was closed."""
    bad = NAN_AT if (mode not in (None, "observe") if is_bad is None else is_bad) else None
    end = RunEnd()
    folder = Path(tempfile.mkdtemp(dir=_fast_disk()))
    loop: Loop | None = None
    with _outside_world(end):
        try:
            with _time_limit(seconds):
                loop = Loop(mode, folder)
                loop.train(arm, disarm, bad)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            end.error, end.place = error, "watch" if loop is None else loop.place
        finally:
            disarm()
            if loop is not None:
                end.bits = loop.bits()
                end.has_nan = not all(bool(p.isfinite().all()) for p in loop.model.parameters())
                _close(loop.guard)
    shutil.rmtree(folder, ignore_errors=True)
    return end


def _close(guard: Any) -> None:
    """Close a guard that may be broken, so that it does not disturb the next run."""
    if guard is not None:
        with contextlib.suppress(Exception, Hang), _time_limit(5.0):
            guard.close()


def _fast_disk() -> str | None:
    """A folder in memory, where there is one: a journal is synced to its disk."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None


@contextmanager
def _outside_world(end: RunEnd) -> Iterator[None]:
    """Note what a run logs and what ends its threads; leave the process as it was."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: end.log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("trimtab")
    before = (logger.propagate, logger.level, logger.handlers[:])
    disabled = logging.root.manager.disable
    hooks = (threading.excepthook, sys.unraisablehook)
    handled = signal.getsignal(signal.SIGTERM)

    def note(failure: Any) -> None:
        end.elsewhere.append(repr(failure.exc_value))

    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logging.disable(logging.INFO)  # torch describes every checkpoint in twenty lines
    threading.excepthook = sys.unraisablehook = note
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        logger.propagate, level, logger.handlers[:] = before
        logger.setLevel(level)
        logging.disable(disabled)
        signal.signal(signal.SIGTERM, handled)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread when the time is up, and again until it ends."""
    # SIGALRM belongs to pytest-timeout.
    main = threading.main_thread().ident
    is_over = threading.Event()
    assert main is not None

    def watch() -> None:
        if is_over.wait(seconds):
            return
        while True:
            signal.pthread_kill(main, signal.SIGUSR1)
            if is_over.wait(1.0):
                return

    def stop(number: int, frame: FrameType | None) -> None:
        if not is_over.is_set():
            raise Hang

    before = signal.signal(signal.SIGUSR1, stop)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


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
    whole = run(mode)
    assert whole.error is None, f"{whole.place}: {whole.error!r}"
    if mode != "recover":  # what it undoes, no other run can
        bare = run(None, is_bad=mode != "observe")
        assert bare.error is None
        assert bare.bits == whole.bits, differences(bare, whole)
    return whole


def differences(one: RunEnd, other: RunEnd) -> tuple[str, ...]:
    """What has other bits in two runs."""
    names = sorted(one.bits.keys() | other.bits.keys())
    return tuple(name for name in names if one.bits.get(name) != other.bits.get(name))


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
