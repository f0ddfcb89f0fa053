"""The seam: the function that every optimizer of DeepSpeed asks before it touches a weight.

`is_invalid_grad_norm` is a global name of the modules of those optimizers, not a method of one. So
what stands in its place (`Seam`) passes the question on to the engine that makes an update in
this thread, if it is watched; for every other one it is the function of DeepSpeed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

NAME = "is_invalid_grad_norm"
"""The function that is asked, in the modules of the optimizers."""

Question = Callable[[Any], Any]
"""Takes the gradient norm over all ranks, still times the loss scale, and returns whether it is
invalid; a negative norm stands for one that is not finite."""

Answer = Callable[[Question, Any], Any]
"""Takes the function of DeepSpeed and the norm, and returns whether the engine is to skip its
update."""

_running: ContextVar[Answer | None] = ContextVar("trimtab_deepspeed_update", default=None)


@contextmanager
def running(answer: Answer) -> Iterator[None]:
    """Let optimizers ask this update meanwhile."""
    token = _running.set(answer)
    try:
        yield
    finally:
        _running.reset(token)


class Seam:
    """Stands in place of the function in one module, as long as an engine is watched."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self._scope = scope
        self._original: Question = scope[NAME]
        self._num_users = 0

    def __call__(self, norm: Any) -> Any:
        answer = _running.get()
        return self._original(norm) if answer is None else answer(self._original, norm)

    def open(self) -> None:
        self._num_users += 1
        self._scope[NAME] = self

    def close(self) -> None:
        """Put the function back after the last engine; what others have put on top stays."""
        self._num_users -= 1
        if self._num_users == 0 and self._scope.get(NAME) is self:
            self._scope[NAME] = self._original


def seams_of(optimizer: Any) -> list[Seam]:
    """Return where this optimizer asks; nothing for versions before 0.19.7 and plain optimizers."""
    found: dict[int, Seam] = {}
    for kind in type(optimizer).__mro__:
        scope = vars(sys.modules.get(kind.__module__, object))
        if "step" in vars(kind) and isinstance(scope, dict) and callable(scope.get(NAME)):
            present = scope[NAME]
            found[id(scope)] = present if isinstance(present, Seam) else Seam(scope)
    return list(found.values())
