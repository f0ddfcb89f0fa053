"""A device that pretends: its tensors say that they are not on the CPU, and their values are there.

Code that branches by device takes the path of an accelerator, with real numbers, a backward pass,
and copies from and to the host. torch registers it once for the whole process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


@cache
def _register() -> torch.device:
    from torch.utils import backend_registration

    class Module(backend_registration._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16]

    backend_registration._setup_privateuseone_for_python_backend("pretend", Module())
    return torch.device("pretend", 0)


class _Plain(torch._C._TensorMeta):
    """Makes a class equal to that of plain tensors, which some code asks for."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is torch.Tensor or other is torch.nn.Parameter

    __hash__ = type.__hash__


class PretendTensor(torch.Tensor, metaclass=_Plain):
    """A tensor that is on the device, with a tensor on the CPU inside."""

    inside: torch.Tensor

    @staticmethod
    def __new__(cls, inside: torch.Tensor) -> "PretendTensor":
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            layout=inside.layout,
            device=_register(),
        )
        made.inside = inside
        return made

    def data_ptr(self) -> int:
        """The address of what is inside, as a tensor with memory of its own has one."""
        return self.inside.data_ptr()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU; what it makes is on the device if what it is given is."""
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, PretendTensor)]
    name = func._schema.name
    if name == "prim::device":
        return _register()
    device = kwargs.get("device")
    if device is not None:
        is_ours = torch.device(device) == _register()
    elif name == "aten::copy_":
        is_ours = isinstance(args[0], PretendTensor)
    else:
        is_ours = bool(given)
    found = func(*tree_map(_inside, args), **tree_map(_inside, kwargs))
    if not is_ours:
        return found
    known = {id(one.inside): one for one in given}  # an operation in place returns what it changed

    def outside(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else PretendTensor(value)

    return tree_map(outside, found)


def _inside(value: Any) -> Any:
    if isinstance(value, torch.device) and value == _register():
        return torch.device("cpu")
    return value.inside if isinstance(value, PretendTensor) else value


class _Pretending(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Give a device on which tensors can be made and trained."""
    device = _register()
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor(..., device=...) passes by
    try:
        with _Pretending():  # type: ignore[no-untyped-call]
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)
