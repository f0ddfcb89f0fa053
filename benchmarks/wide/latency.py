"""The time of a small all_reduce by a model: arithmetic, from assumptions that are stated."""

import math
from dataclasses import dataclass

HOP_SECONDS = 10e-6
"""Assumed: from one rank to the next in the tree, with the start of the kernel. NCCL's tests on
InfiniBand report 20 to 30 us for the smallest all_reduce over two nodes, which is two hops."""

BYTES_PER_SECOND = 25e9
"""Assumed: 200 Gbit/s of one rank. At these sizes it does not matter."""

STEP_SECONDS = 10.0
"""Assumed: a step of a run of this size. Source: Llama 3 405B, 16M tokens at 400 TFLOP/s on each of
16,384 GPUs: 6 * 405e9 * 16e6 / (16384 * 400e12) = 6 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What the collectives of a step take on paper."""

    world: int
    hops: int
    seconds: float

    @property
    def share(self) -> float:
        """Of a step, if nothing runs meanwhile."""
        return self.seconds / STEP_SECONDS


def tree_latency(world: int, num_collectives: int, num_bytes: float) -> Latency:
    """A binary tree: up to sum, down to distribute, one collective after the other."""
    hops = 2 * math.ceil(math.log2(world))
    one = hops * HOP_SECONDS + 2 * num_bytes / num_collectives / BYTES_PER_SECOND
    return Latency(world=world, hops=hops, seconds=num_collectives * one)
