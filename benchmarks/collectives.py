"""What ranks exchange for protection: how often, how many bytes, and how long it takes.

Real ranks are processes on this machine with gloo; the largest worlds are torch's fake process
group, which counts and allocates like a real one and exchanges nothing.
"""

import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import trimtab
from benchmarks.results import publish, table
from trimtab.core.config import GateConfig
from trimtab.live.boundary import Boundary
from trimtab.live.protect.gate import Gate
from trimtab.live.sensors import HEAD

REAL_WORLDS = (2, 4, 8, 16)
FAKE_WORLDS = (64, 16_384)
ROUNDS = 200
MOST_COLLECTIVES, MOST_BYTES = 2, 256


class Traffic:
    """Counts the collectives of each step and their bytes."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        """Of each step, the bytes of each collective."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every all_reduce; any other collective raises."""
        original = dist.all_reduce

        def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.steps[-1].append(tensor.numel() * tensor.element_size())
            return original(tensor, *args, **kwargs)

        def unexpected(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a collective that nobody has counted")

        others = ("all_gather", "broadcast", "all_gather_object", "barrier", "reduce_scatter")
        with mock.patch.object(dist, "all_reduce", counting):
            patches = [mock.patch.object(dist, name, unexpected) for name in others]
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()

    @property
    def most_collectives(self) -> int:
        """Of any step."""
        return max(len(step) for step in self.steps)

    @property
    def bytes_a_step(self) -> float:
        """On average: telemetry rides along every tenth step."""
        return sum(map(sum, self.steps)) / len(self.steps)


def traffic(world: int, run_dir: Path, *, num_blocks: int = 32, steps: int = 40) -> Traffic:
    """The traffic of protected steps in a world of this size, which is not real."""
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(num_blocks))
        model = nn.ModuleDict({"layers": blocks})
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        counted = Traffic()
        with (
            trimtab.watch(model, optimizer, run_dir=run_dir, mode="protect") as guard,
            counted.watching(),
        ):
            for _ in range(steps):
                counted.steps.append([])
                x = torch.ones(2, 4)
                for block in blocks:
                    x = block(x)
                loss = x.square().mean()
                guard.record(loss=loss, tokens=8)
                loss.backward()
                guard.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
        return counted
    finally:
        dist.destroy_process_group()


def _rank(rank: int, world: int, meeting: str, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    device = torch.device("cpu")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    boundary = Boundary(device, 2, 64)
    gate = Gate(model, [optimizer], boundary, GateConfig(), device, lambda name: None)
    head = torch.tensor([2.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    sums, votes = torch.zeros(1 + len(HEAD)), torch.zeros(2, dtype=torch.int64)
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "gate": []}
    for turn in range(2 * (ROUNDS + 20)):
        name = ("bare", "gate")[turn % 2]
        wall, cpu = time.perf_counter(), time.process_time()
        if name == "gate":
            gate.meet(head, torch.tensor(2.0), may_shrink=True)
            gate.take()
        else:
            dist.all_reduce(sums)
            dist.all_reduce(votes, dist.ReduceOp.MAX)
        times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        queue.put({name: pairs[20:] for name, pairs in times.items()})


def real(world: int) -> dict[str, tuple[float, float]]:
    """Median wall and CPU time of the first rank, for both ways, in seconds."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        ranks = [
            context.Process(target=_rank, args=(rank, world, meeting, queue))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        times = queue.get(timeout=600)
        for process in ranks:
            process.join()
    return {
        name: (statistics.median(w for w, _ in pairs), statistics.median(c for _, c in pairs))
        for name, pairs in times.items()
    }


def main() -> None:
    """Measure and publish: `collectives [WORLD ...]` for the real worlds."""
    torch.set_num_threads(1)
    rows: list[list[object]] = []
    for world in [int(argument) for argument in sys.argv[1:]] or REAL_WORLDS:
        times = real(world)
        cells = [f"{1e6 * value:.0f} us" for name in ("bare", "gate") for value in times[name]]
        rows.append([world, *cells])
    counts: list[list[object]] = []
    for world in FAKE_WORLDS:
        with tempfile.TemporaryDirectory() as folder:
            found = traffic(world, Path(folder))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        is_met = found.most_collectives <= MOST_COLLECTIVES and found.bytes_a_step <= MOST_BYTES
        counts.append(
            [
                f"{world:,}",
                found.most_collectives,
                f"{found.bytes_a_step:.0f}",
                max(map(sum, found.steps)),
                f"{memory} MB",
                "yes" if is_met else "NO",
            ]
        )
    body = (
        f"Both meetings of a step against two bare all_reduces of the same size, {ROUNDS} "
        "interleaved rounds, gloo, one process a rank on this machine; medians of the first "
        "rank.\n\n"
        + table(("ranks", "bare, wall", "bare, CPU", "gate, wall", "gate, CPU"), rows)
        + "\n\nA protected model of 32 blocks, telemetry every tenth step, in a world that only "
        f"counts; the bar is {MOST_COLLECTIVES} collectives and {MOST_BYTES} bytes a step.\n\n"
        + table(
            ("ranks", "most a step", "bytes a step", "most bytes", "peak memory", "within"), counts
        )
    )
    publish("Collectives of protection", "scripts/bench collectives", body)


if __name__ == "__main__":
    main()
