"""StepHooks: sits in front of and behind `optimizer.step()` of every watched optimizer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class StepListener(Protocol):
    """Who is told about steps; none of these may raise."""

    def is_observed(self) -> bool:
        """Whether the step at hand is one that the user recorded."""
        ...

    def before_update(self) -> None:
        """The gradients are ready, no optimizer has moved yet."""
        ...

    def before_optimizer(self, optimizer: Optimizer) -> None:
        """This optimizer is about to move, recorded or not."""
        ...

    def after_optimizer(self, optimizer: Optimizer) -> None:
        """It has moved."""
        ...

    def cannot_gate(self, optimizer: Optimizer, why: str) -> None:
        """This optimizer uses its closure in a way that nobody can look behind."""
        ...

    def after_update(self) -> None:
        """Every watched optimizer has moved."""
        ...

    def unobserved(self) -> None:
        """An optimizer moved without a record."""
        ...


class StepHooks:
    """Tells a listener when a step begins and when it is done, over several optimizers."""

    def __init__(self, optimizers: Sequence[Optimizer], listener: StepListener) -> None:
        self._num_optimizers = len(optimizers)
        self._listener = listener
        self._moved: set[int] = set()
        self._handles: list[RemovableHandle] = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))

    @property
    def is_under_way(self) -> bool:
        """Whether some of the optimizers have moved and others have not."""
        return bool(self._moved)

    def forget(self) -> None:
        """The step is over, whoever has moved."""
        self._moved.clear()

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # torch passes the optimizer itself as the first of args; a closure may follow.
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._begin(optimizer)
            return None
        wrapped = self._wrap(optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _wrap(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure runs forward and backward: only behind it are there gradients to see."""
        versions = _versions(optimizer)
        num_calls = 0

        def watched() -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls > 1:
                self._listener.cannot_gate(optimizer, "evaluates its closure more than once")
            elif _versions(optimizer) != versions:
                self._listener.cannot_gate(optimizer, "moves the weights before its closure")
            result = closure()
            if num_calls == 1:
                self._begin(optimizer)
            return result

        return watched

    def _begin(self, optimizer: Optimizer) -> None:
        if not self._moved and self._listener.is_observed():
            self._listener.before_update()
        self._listener.before_optimizer(optimizer)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._listener.after_optimizer(optimizer)
        if not self._listener.is_observed():
            self._listener.unobserved()
            return
        self._moved.add(id(optimizer))
        if len(self._moved) == self._num_optimizers:
            self._moved.clear()
            self._listener.after_update()


def _versions(optimizer: Optimizer) -> list[int]:
    """How often each parameter has been written to."""
    return [p._version for group in optimizer.param_groups for p in group["params"]]
