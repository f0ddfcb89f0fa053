"""Hooks of a guard: before and after `optimizer.step()`, and at a SIGTERM.

They hold only a weak reference: a guard that was dropped leaves hooks that do nothing. Compilers
do not look inside. A SIGTERM handler is set only where there is none: a user's handler decides what
a SIGTERM means, and the guard keeps working until it is closed.
"""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from trimtab.live.shield import never_compiled
from trimtab.state.host_copy import version_of

if TYPE_CHECKING:
    from trimtab.live.loop.step_monitor import StepMonitor

OPERATION = "optimizer.step"
"""What the hooks are part of, as the log names it."""


class Hooks(Protocol):
    """What calls a `StepMonitor` before and after every update."""

    hides_gradients: bool
    """Whether the gradients of the optimizers' parameters say nothing about a step."""

    def register(self, optimizers: Sequence[Optimizer]) -> None: ...
    def connect(self, record: Callable[..., None]) -> None: ...
    def keep_alive(self, listener: "StepMonitor") -> None: ...
    def deactivate(self) -> None: ...
    def remove(self) -> None: ...


class StepHooks:
    """Pre- and post-hooks on all optimizers."""

    hides_gradients = False

    def __init__(self, listener: "StepMonitor") -> None:
        self._before = _Before(weakref.ref(listener))
        self._after = _After(weakref.ref(listener))
        self._handles: list[RemovableHandle] = []

    def register(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            handle = optimizer.register_step_post_hook(self._after)
            self._handles.append(handle)
            # First of all: a user's hook must find the gradients that were there before.
            hooks: Any = optimizer._optimizer_step_post_hooks
            hooks.move_to_end(handle.id, last=False)

    def connect(self, record: Callable[..., None]) -> None:
        """The guard is there; the loop records its losses itself."""

    def keep_alive(self, listener: "StepMonitor") -> None:
        """Let the optimizers keep the listener: a closed guard that others still wait for."""
        self._before.keep(listener)

    def deactivate(self) -> None:
        """Turn the hooks into no-ops from within one of them, where torch allows no removal."""
        self._before.keep(None)

    def remove(self) -> None:
        self.deactivate()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def open_monitor(optimizer: Optimizer) -> "StepMonitor | None":
    """Return what watches an optimizer already, for a guard that is open."""
    hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {})
    found = [hook.listener for hook in hooks.values() if isinstance(hook, _Before)]
    return next((monitor for monitor in found if monitor and not monitor.is_out), None)


class _Before:
    """The pre-hook; it wraps a closure, because only after it there are gradients to look at."""

    def __init__(self, listener: "weakref.ref[StepMonitor]") -> None:
        self._listener = listener
        self._kept: StepMonitor | None = None

    def keep(self, listener: "StepMonitor | None") -> None:
        self._kept = listener

    @property
    def listener(self) -> "StepMonitor | None":
        return self._listener()

    @never_compiled
    def __call__(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        listener = self._listener()
        if listener is None or listener.entrance(OPERATION, _is_nested, optimizer):
            return None
        # torch passes the optimizer itself as the first of args; a closure may follow.
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(closure):
            listener.entrance(OPERATION, listener.before_update, optimizer)
            listener.entrance(OPERATION, listener.carry_out, optimizer)
            if (rates := listener.rollback.rates).factor != 1.0:  # also if the guard is out by now
                listener.entrance(OPERATION, rates.before, optimizer)
            return None
        wrapped = listener.entrance(OPERATION, _wrap, listener, optimizer, closure)
        if wrapped is None:
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs


class _After:
    """The post-hook."""

    def __init__(self, listener: "weakref.ref[StepMonitor]") -> None:
        self._listener = listener

    @never_compiled
    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        listener = self._listener()
        if listener is not None and not listener.entrance(OPERATION, _is_nested, optimizer):
            if (rates := listener.rollback.rates).factor != 1.0:
                listener.entrance(OPERATION, rates.after, optimizer)
            listener.entrance(OPERATION, listener.after_update, optimizer)


def _is_nested(optimizer: Optimizer) -> bool:
    """Return whether a step of this optimizer is called by its own step, which is one update.

    torch runs the hooks for both: for `step` of a subclass, and for `super().step()` in it as soon
    as there has been an instance of the base class.
    """
    num_hooked = 0
    for kind in type(optimizer).__mro__:
        if (step := vars(kind).get("step")) is not None:
            num_hooked += getattr(step, "hooked", False)
    if num_hooked < 2:
        return False
    frame: FrameType | None = sys._getframe()
    num_steps = 0
    while frame is not None and num_steps < 2:
        if frame.f_code.co_name == "wrapper":  # that of `Optimizer.profile_hook_step`
            found = frame.f_locals
            num_steps += found.get("profile_name") is not None and found.get("self") is optimizer
        frame = frame.f_back
    return num_steps > 1


def _wrap(
    listener: "StepMonitor", optimizer: Optimizer, closure: Callable[[], Any]
) -> Callable[[], Any]:
    """A closure runs forward and backward: the gate sits at its end."""
    versions = _versions(optimizer)
    num_calls = 0

    def inspect() -> None:
        if num_calls > 1:
            listener.cannot_gate(optimizer, "evaluates its closure more than once")
        elif _versions(optimizer) != versions:
            listener.cannot_gate(optimizer, "moves the weights before its closure")

    def watched() -> Any:
        nonlocal num_calls
        num_calls += 1
        listener.entrance(OPERATION, inspect)
        result = closure()  # what it raises is the user's
        if num_calls == 1:
            listener.entrance(OPERATION, listener.before_update, optimizer)
            listener.entrance(OPERATION, listener.carry_out, optimizer)
            if (rates := listener.rollback.rates).factor != 1.0:  # also if the guard is out by now
                listener.entrance(OPERATION, rates.before, optimizer)
        return result

    return watched


def _versions(optimizer: Optimizer) -> list[int]:
    """How often each parameter has been written to."""
    return [version_of(p) for group in optimizer.param_groups for p in group["params"]]


# The end of a process that never closed its guard.

CLOSE_SECONDS = 5.0
"""How long a SIGTERM waits for the journal: schedulers send SIGKILL after 10 s or more."""


class ExitHooks:
    """Calls `close` with the reason when the process is terminated."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = weakref.WeakMethod(close)
        self._handler: _TermHandler | None = None

    def register(self) -> None:
        """Set a handler, in the main thread and if there is none."""
        if threading.current_thread() is not threading.main_thread():
            return
        present: Any = signal.getsignal(signal.SIGTERM)
        if isinstance(present, _TermHandler):  # of another guard
            self._handler = present
        elif present == signal.SIG_DFL:
            self._handler = _TermHandler()
            signal.signal(signal.SIGTERM, self._handler)
        if self._handler is not None:
            self._handler.add(self._close)

    def remove(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.remove(self._close)
        # A handler can only be set in the main thread; in another one we are ending by SIGTERM.
        is_main = threading.current_thread() is threading.main_thread()
        # The user may have set a handler since; that one stays.
        present: Any = signal.getsignal(signal.SIGTERM)
        if is_main and present is handler and not handler.closers:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _TermHandler:
    """What SIGTERM calls, for all guards of the process; it keeps none of them alive."""

    def __init__(self) -> None:
        self.closers: list[weakref.WeakMethod[Callable[[str], None]]] = []

    def add(self, closer: "weakref.WeakMethod[Callable[[str], None]]") -> None:
        self.closers.append(closer)

    def remove(self, closer: "weakref.WeakMethod[Callable[[str], None]]") -> None:
        self.closers = [c for c in self.closers if c is not closer and c() is not None]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        present: Any = signal.getsignal(signal.SIGTERM)
        if present is not self:
            return  # a user's handler was set on top and calls this one: it decides
        for closer in self.closers:
            close = closer()
            if close is not None:
                # In a thread, because the main one may hold a lock that closing needs. It waits
                # here, so nothing is trained while the guard is being closed.
                closing = threading.Thread(target=close, args=("SIGTERM",), daemon=True)
                closing.start()
                closing.join(CLOSE_SECONDS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
