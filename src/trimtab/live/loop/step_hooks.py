"""StepHooks: runs before and after `optimizer.step()` of every watched optimizer.

Hooks hold only a weak reference: a guard that was dropped leaves hooks that do nothing. Compilers
do not look inside.
"""

import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from trimtab.live.shield import Entrance
from trimtab.state.host_copy import version_of

OPERATION = "optimizer.step"
"""What the hooks are part of, as the log names it."""


class StepListener(Protocol):
    """What the hooks call, each method through the entrance."""

    entrance: Entrance

    def before_update(self, optimizer: Optimizer) -> None:
        """The gradients are ready and this optimizer is about to move."""
        ...

    def carry_out(self, optimizer: Optimizer) -> None:
        """What was decided is to be done, whatever became of `before_update`."""
        ...

    def after_update(self, optimizer: Optimizer) -> None:
        """It has moved."""
        ...

    def cannot_gate(self, optimizer: Optimizer, why: str) -> None:
        """This optimizer uses its closure in a way that hides its gradients."""
        ...


class StepHooks:
    """Pre- and post-hooks on all optimizers."""

    def __init__(self, optimizers: Sequence[Optimizer], listener: StepListener) -> None:
        self._before = _Before(weakref.ref(listener))
        self._handles: list[RemovableHandle] = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            handle = optimizer.register_step_post_hook(_After(weakref.ref(listener)))
            self._handles.append(handle)
            # First of all: a user's hook must find the gradients that were there before.
            hooks: Any = optimizer._optimizer_step_post_hooks
            hooks.move_to_end(handle.id, last=False)

    def keep_alive(self, listener: StepListener) -> None:
        """Let the optimizers keep the listener: a closed guard that others still wait for."""
        self._before.kept = listener

    def deactivate(self) -> None:
        """Turn the hooks into no-ops from within one of them, where torch allows no removal."""
        self._before.kept = None

    def remove(self) -> None:
        self.deactivate()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Before:
    """The pre-hook; it wraps a closure, because only after it there are gradients to look at."""

    def __init__(self, listener: "weakref.ref[StepListener]") -> None:
        self._listener = listener
        self.kept: StepListener | None = None

    @_disable_dynamo
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
            return None
        wrapped = listener.entrance(OPERATION, _wrap, listener, optimizer, closure)
        if wrapped is None:
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs


class _After:
    """The post-hook."""

    def __init__(self, listener: "weakref.ref[StepListener]") -> None:
        self._listener = listener

    @_disable_dynamo
    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        listener = self._listener()
        if listener is not None and not listener.entrance(OPERATION, _is_nested, optimizer):
            listener.entrance(OPERATION, listener.after_update, optimizer)


def _is_nested(optimizer: Optimizer) -> bool:
    """Return whether a step of this optimizer is called by its own step, which is one update.

    torch runs the hooks for both: for `step` of a subclass, and for `super().step()` in it as soon
    as there has been an instance of the base class.
    """
    steps = (vars(kind).get("step") for kind in type(optimizer).__mro__)
    if sum(getattr(step, "hooked", False) for step in steps) < 2:
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
    listener: StepListener, optimizer: Optimizer, closure: Callable[[], Any]
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
        return result

    return watched


def _versions(optimizer: Optimizer) -> list[int]:
    """How often each parameter has been written to."""
    return [version_of(p) for group in optimizer.param_groups for p in group["params"]]
