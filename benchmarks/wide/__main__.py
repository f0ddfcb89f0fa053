"""Measure what can be measured of very many ranks, and compute the rest: `scripts/bench wide`."""

import math
import sys

from tests.kit.traffic import NUM_BLOCKS

from benchmarks.results import Headline, publish, table
from benchmarks.wide.fake_world import measure_rank
from benchmarks.wide.start_up import CLIENTS, measure_start_up

WORLDS = (1_024, 16_384, 131_072)
COMMAND = "scripts/bench wide"
BARS = {"collectives": 2, "bytes": 2048, "read": 500}

HOP_SECONDS = 10e-6
"""Assumed: from one rank to the next in the tree, with the start of the kernel. NCCL's tests on
InfiniBand report 20 to 30 us for the smallest all_reduce over two nodes, which is two hops."""

BYTES_PER_SECOND = 25e9
"""Assumed: 200 Gbit/s of one rank. At these sizes it does not matter."""

STEP_SECONDS = 10.0
"""Assumed: a step of a run of this size. Source: Llama 3 405B, 16M tokens at 400 TFLOP/s on each of
16,384 GPUs: 6 * 405e9 * 16e6 / (16384 * 400e12) = 6 s."""


def main() -> None:
    """Measure and publish: `wide [WORLD ...]`."""
    worlds = [int(argument) for argument in sys.argv[1:]] or list(WORLDS)
    publish("Scale: a wide run", COMMAND, *_steps(worlds))
    publish("Scale: start-up of many ranks", COMMAND, *_start_up(worlds))


def _steps(worlds: list[int]) -> tuple[str, list[Headline]]:
    rows = []
    for world in worlds:
        rank = measure_rank(world)
        paper = tree_seconds(world, rank.max_collectives, rank.max_bytes)
        is_met = rank.max_collectives <= BARS["collectives"] and rank.max_bytes <= BARS["bytes"]
        rows.append(
            [
                f"{world:,}",
                rank.max_collectives,
                f"{rank.bytes_per_step:.0f}",
                rank.max_bytes,
                f"{rank.peak_mb:.0f} MB",
                f"{rank.group_seconds:.2f} s, {rank.group_mb:.0f} MB",
                "yes" if is_met else "NO",
                f"{1000 * paper:.2f} ms",
                f"{100 * paper / STEP_SECONDS:.3f} %",
            ]
        )
    header = (
        *("ranks", "max collectives per step", "bytes per step", "max bytes per step"),
        *("peak memory of a rank", "its process group", "within"),
        *("on paper: a step", "on paper: share"),
    )
    text = (
        f"One rank that protects a model of {NUM_BLOCKS} blocks, in torch's fake process group: it "
        "allocates like a real one and exchanges nothing. Bar: "
        f"{BARS['collectives']} collectives and {BARS['bytes']} bytes in any step. The last two "
        "columns are arithmetic: a binary tree up and down, "
        f"{1e6 * HOP_SECONDS:.0f} us per hop (assumed), {BYTES_PER_SECOND / 1e9:g} "
        f"GB/s (assumed), steps of {STEP_SECONDS:g} s (assumed), nothing else meanwhile. "
        "NCCL was not tried.\n\n" + table(header, rows)
    )
    ranks, collectives, _, size, memory, *_ = rows[-1]
    return text, [
        (f"{ranks} ranks: collectives in any step", collectives, BARS["collectives"]),
        (f"{ranks} ranks: bytes in any step", size, BARS["bytes"]),
        (f"{ranks} ranks: memory of a rank", memory, "-"),
    ]


def tree_seconds(world: int, num_collectives: int, num_bytes: float) -> float:
    """Return the time of a step's collectives in a binary tree: up to sum, down to distribute."""
    one = 2 * math.ceil(math.log2(world)) * HOP_SECONDS
    return num_collectives * (one + 2 * num_bytes / num_collectives / BYTES_PER_SECOND)


def _start_up(worlds: list[int]) -> tuple[str, list[Headline]]:
    rows = []
    for world in worlds:
        found = measure_start_up(world)
        rows.append(
            [
                f"{world:,}",
                found.max_calls,
                f"{found.max_written:,}",
                f"{found.max_read:,}",
                found.first_calls,
                f"{found.seconds:.1f} s",
                "yes" if found.max_read <= BARS["read"] else "NO",
            ]
        )
    header = (
        *("ranks", "max calls of a rank", "max bytes written"),
        *("max bytes read", "calls of the first rank", "all ranks", "within"),
    )
    text = (
        "What the ranks ask of torch's store before the first step, with the real code and a real "
        f"TCPStore on loopback. {CLIENTS} clients play all ranks in turn, so the time is that of "
        f"one store on this machine. All hold the same parameters. Bar: a rank reads at most "
        f"{BARS['read']} bytes, however many there are.\n\n" + table(header, rows)
    )
    ranks, _, _, read, _, seconds, _ = rows[-1]
    return text, [
        (f"{ranks} ranks start: bytes that a rank reads", read, BARS["read"]),
        (f"{ranks} ranks start: all of them, by one store", seconds, "-"),
    ]


if __name__ == "__main__":
    main()
