"""What ranks exchange for protection: number of collectives, bytes and time.

Real ranks are processes on this machine with gloo; the largest worlds use torch's fake process
group, which allocates like a real one and exchanges nothing.
"""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from tests.kit.traffic import MAX_BYTES, MAX_COLLECTIVES, NUM_BLOCKS, traffic
from torch import nn

from benchmarks.results import publish, table
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.live.arithmetic import DeviceMath
from trimtab.live.measure.step_meter import HEAD
from trimtab.live.protect.gate import Gate
from trimtab.live.ranks.exchange import RankSync
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.shield import Shield

REAL_WORLDS = (2, 4, 8, 16)
FAKE_WORLDS = (64, 16_384)
ROUNDS, WARM_ROUNDS = 200, 20
MAX_RATIO = 1.3


def _times(rank: int) -> dict[str, list[float]]:
    """Wall-clock seconds of each round, for each variant."""
    device = torch.device("cpu")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    group = RankGroup(rank=rank, world=dist.get_world_size(), handle=dist.group.WORLD)
    arithmetic = DeviceMath(device)
    sync = RankSync(group, device, arithmetic)
    shield = Shield("gate", "it stops")
    gate = Gate(model, [optimizer], device, shield, arithmetic=arithmetic)
    head = torch.zeros(len(HEAD))
    head[HEAD.index("loss")], head[HEAD.index("tokens")] = 2.0, 1.0
    head[HEAD.index("given_norm")], head[HEAD.index("num_given")] = 1.0, 1.0
    head[HEAD.index("recorded")] = 1.0
    loss, vote = torch.tensor(2.0), torch.zeros((), dtype=torch.int64)
    sums, votes = torch.zeros(1 + len(HEAD)), torch.zeros(2, dtype=torch.int64)

    def bare() -> None:
        dist.all_reduce(sums)
        dist.all_reduce(votes, dist.ReduceOp.MAX)

    def reductions() -> None:
        sync.sum(head)
        sync.vote(vote, loss)

    def with_rule() -> None:
        gate.decide(sync, sync.sum(head), loss, is_recorded=True, may_shrink=True)

    ways: dict[str, Callable[[], None]]
    ways = {"bare": bare, "reductions": reductions, "with the rule": with_rule}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(WARM_ROUNDS + ROUNDS):
        start = turn % len(ways)  # rotate the order: each variant affects the one after it
        for name in [*ways][start:] + [*ways][:start]:
            dist.barrier()  # so that no rank waits for one that was late in the round before
            started = time.perf_counter()
            ways[name]()
            times[name].append(time.perf_counter() - started)
    return {name: seconds[WARM_ROUNDS:] for name, seconds in times.items()}


def real(world: int) -> dict[str, float]:
    """Median seconds per round on the first rank, for each variant."""
    times = run_ranks(_times, world, timeout=600)[0]
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    """Measure and publish: `collectives [WORLD ...]` for the real worlds."""
    torch.set_num_threads(1)
    rows: list[list[object]] = []
    cores = os.cpu_count() or 1
    for world in [int(argument) for argument in sys.argv[1:]] or REAL_WORLDS:
        times = real(world)
        ratios = [times[name] / times["bare"] for name in ("reductions", "with the rule")]
        more = f"{world} ({world // cores} per core)" if world > cores else str(world)
        cells = [f"{1e6 * seconds:.0f} us" for seconds in times.values()]
        verdict = "yes" if ratios[0] <= MAX_RATIO else "NO"
        rows.append([more, *cells, *(f"{ratio:.2f}" for ratio in ratios), verdict])
    counts: list[list[object]] = []
    for world in FAKE_WORLDS:
        with tempfile.TemporaryDirectory() as folder:
            found = traffic(world, Path(folder))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        is_met = found.max_collectives <= MAX_COLLECTIVES and found.max_bytes <= MAX_BYTES
        counts.append(
            [
                f"{world:,}",
                found.max_collectives,
                f"{found.bytes_per_step:.0f}",
                found.max_bytes,
                f"{memory} MB",
                "yes" if is_met else "NO",
            ]
        )
    body = (
        f"Both reductions of a step against two bare all_reduces of the same size, {ROUNDS} "
        "interleaved rounds after a barrier, gloo, one process per rank on this machine; medians "
        "of wall-clock time on the first rank. With more ranks than cores, ranks wait for a core "
        "and not for each other, so only the ratio is meaningful. The bar is "
        f"{MAX_RATIO} for the reductions; the operations of the rule are part of the cost of "
        "protecting.\n\n"
        + table(
            ("ranks", "bare", "reductions", "with the rule", "ratio", "with the rule", "within"),
            rows,
        )
        + f"\n\nA protected model of {NUM_BLOCKS} blocks, telemetry every tenth step, in a fake "
        f"process group; the bar is {MAX_COLLECTIVES} collectives and {MAX_BYTES} bytes in any "
        "step.\n\n"
        + table(
            (
                *("ranks", "max collectives per step", "bytes per step", "max bytes per step"),
                *("peak memory", "within"),
            ),
            counts,
        )
    )
    worst = counts[-1]
    headlines = [
        ("reductions of a step, of two bare all_reduces, 2 ranks", rows[0][4], MAX_RATIO),
        (f"collectives in any step, {worst[0]} ranks", worst[1], MAX_COLLECTIVES),
        (f"bytes in any step, {worst[0]} ranks", worst[3], MAX_BYTES),
    ]
    publish("Collectives of protection", "scripts/bench collectives", body, headlines)


if __name__ == "__main__":
    main()
