"""Gradients that a trainer clears at the start of the next step, and not at the end of the last.

Between two steps they are still there, and have no meaning any more: a snapshot need not hold them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def hidden_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """At a boundary: take the gradients away, and put the same tensors back after it.

    Hooks of the user may still look at them, and a CUDA graph writes to their addresses.
    """
    used = [(p, p.grad) for p in parameters if p.grad is not None]
    for parameter, _ in used:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in used:
            parameter.grad = gradient
