"""The format in which a loss was computed, as its graph shows it."""

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
"""The regimes of a run, the narrowest first."""

MAX_NODES = 10_000
"""Nodes of the graph that are looked at, from the loss on. Chosen: some layers of any model."""


def loss_dtype(loss: Any) -> str | None:
    """Return the narrowest format in the graph of a loss; None if it is not known.

    Parameters are fp32 under autocast as well, and a loop records outside of its context. What
    autocast leaves behind are the casts in the graph. Compiled code and functions in Python show
    only their results. A loss without a graph says nothing.
    """
    first = loss.grad_fn if isinstance(loss, torch.Tensor) else None
    waiting, seen = [first], set[Any]()
    found: set[torch.dtype] = set()
    is_hidden = False
    while waiting and len(seen) < MAX_NODES:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found |= {output.dtype for output in getattr(node, "_input_metadata", ())}
        is_hidden |= isinstance(node, BackwardCFunction)
        waiting += [parent for parent, _ in node.next_functions]
    name = next((name for dtype, name in NAMES.items() if dtype in found), None)
    return None if is_hidden and name == NAMES[torch.float32] else name
