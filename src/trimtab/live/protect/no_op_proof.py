"""The proof that a step without gradients is none, for optimizers that have no flag.

The optimizer itself takes one, with its state and without its hooks. Nothing is copied for that but
what `Contents` puts back afterwards: a write to any other tensor, and an exchange with other ranks,
is refused before it happens. Some optimizers raise, decay or average all the same; their bad steps
cannot be discarded, and `watch` says so before the first one.

A write that torch's dispatcher does not see is not found: through numpy, or in a kernel that takes
bare pointers.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trimtab.live.protect.discard import Discard
from trimtab.state.host_copy import local
from trimtab.state.rng import get_random_state, set_random_state
from trimtab.state.training_state import parameters_of

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def why_not_discardable(optimizer: Optimizer) -> str | None:
    """Return why a bad step of this optimizer cannot be discarded; None if it can.

    It takes a step without gradients for that, and is put back as it was. A step of torch's own
    distributed optimizers is a collective, and is not tried.
    """
    if type(optimizer).__module__.startswith("torch.distributed"):
        return None
    name = type(optimizer).__name__
    discard, random = Discard(), get_random_state()
    weights = [(parameter, parameter.data) for parameter in parameters_of([optimizer])]
    try:
        contents = discard.via_missing_grads(optimizer)
        if not contents.is_complete:
            return f"{name} holds too many objects to be put back after a step without gradients"
        refusal = _RefuseWrites(contents.small_tensors)
        with _without_hooks(optimizer), torch.no_grad():
            error = _try_steps(optimizer, refusal)
        if refusal.sentence is not None:
            return f"{name} {refusal.sentence} in a step without gradients"
        if any(_storage(parameter) != _storage(data) for parameter, data in weights):
            return f"{name} replaces weights in a step without gradients"
        if error is not None:
            return f"{name} cannot step without gradients ({type(error).__name__}: {error})"
        return None
    finally:
        for parameter, data in weights:
            if _storage(parameter) != _storage(data):
                parameter.data = data
        discard.undo(optimizer)
        set_random_state(random)


def _try_steps(optimizer: Optimizer, refusal: "_RefuseWrites") -> Exception | None:
    """Take a step, with a closure if it needs one; return the error if it takes none."""
    first: Exception | None = None
    for arguments in ((), (lambda: torch.zeros(()),)):
        try:
            with refusal:
                _step_of(optimizer)(optimizer, *arguments)
        except Exception as error:
            first = first or error
        else:
            return None
        if refusal.sentence is not None:
            break
    return first


def _step_of(optimizer: Optimizer) -> Callable[..., Any]:
    """Return the step that the class defines: not a scheduler's wrapper, nor what runs hooks."""
    step: Any = type(optimizer).step
    hooked: Callable[..., Any] = getattr(step, "__wrapped__", step)
    return hooked if getattr(step, "hooked", False) else step


@contextmanager
def _without_hooks(optimizer: Optimizer) -> Iterator[None]:
    held = vars(optimizer)
    hooks = {name: held[name] for name in _HOOKS if name in held}
    held.update({name: OrderedDict() for name in hooks})
    try:
        yield
    finally:
        held.update(hooks)


class _Refusal(Exception):
    """A step has tried to change something."""


class _RefuseWrites(TorchDispatchMode):
    """Refuses to write to tensors that were there before, some excepted, and to reach ranks."""

    def __init__(self, allowed: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sentence: str | None = None
        """The first thing that was refused."""
        # Weak references: the address of a storage is not used again as long as one exists.
        self._writable = {_storage(tensor) for tensor in allowed}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        named |= kwargs or {}
        written = [
            named.get(argument.name)
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if func.namespace in ("c10d", "_c10d_functional"):
            self._refuse("exchanges numbers with other ranks")
        if not _storages(written) <= self._writable:
            self._refuse("changes weights or state")
        result = func(*args, **(kwargs or {}))
        is_new = func is torch.ops.aten.lift_fresh.default  # `torch.tensor` ends with it
        self._writable |= _storages(result) - (set() if is_new else _storages(named))
        return result

    def _refuse(self, sentence: str) -> None:
        self.sentence = self.sentence or sentence
        raise _Refusal(sentence)


def _storages(values: Any) -> set[StorageWeakRef]:
    return {_storage(leaf) for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(local(tensor).untyped_storage())
