"""Counts the operations that reach the device, by name."""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}
"""Operations that read a value of the device on the host."""


class Counting(TorchDispatchMode):
    """Counts the operations that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))
