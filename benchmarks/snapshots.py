"""The cost of snapshots: taking and returning one, and a step of a run that takes them."""

import itertools
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import MAX_NORM, Contender, Trimtab
from benchmarks.results import publish, table
from trimtab.live.guard import Guard
from trimtab.restore.snapshot import Snapshot
from trimtab.restore.training_state import TrainingState

ROUNDS = 12
STEP_ROUNDS = 50
WARM_ROUNDS = 80
"""Steps until every slot has been filled once: the first time, its memory is new."""
STEP_TOKENS = (4, 256)
SHORT_TOKENS = (1, 64)
COPY_BAR = 1.3
STEP_BAR = 1.01


class Recover(Trimtab):
    """Our guard in `recover`: its snapshots are taken when the next step is asked for."""

    def __init__(self, size: str, folder: Path) -> None:
        super().__init__(size, folder, mode="recover")
        assert isinstance(self.guard, Guard)
        self._tokens: list[torch.Tensor] = []
        self._steps = self.guard.steps(self._batches())

    def _batches(self) -> Any:
        while True:
            yield self._tokens[-1]

    def step(self, tokens: torch.Tensor) -> None:
        """One step, timed, with the boundary before it."""
        self._tokens = [tokens]
        started = time.process_time()
        next(self._steps)
        boundary = time.process_time() - started
        super().step(tokens)
        self.wholes[-1] += boundary

    def update(self, loss: torch.Tensor) -> None:
        self.guard.clip_grad_norm_(MAX_NORM)
        self.optimizer.step()


def measure(act: Callable[[], object]) -> float:
    """The least CPU time of several calls, in milliseconds."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        act()
        seconds.append(time.process_time() - started)
    return 1000 * min(seconds)


def resident() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def copies(size: str, folder: Path) -> list[list[str]]:
    """The rows of taking and returning a snapshot, against a plain copy."""
    one = Contender(size, folder)
    one.step(torch.randint(0, one.model.config.vocab_size, SHORT_TOKENS))
    state = TrainingState(one.model, [one.optimizer])
    tensors = [*state.tensors()["parameters"].values()]
    tensors += [t for s in one.optimizer.state.values() for t in s.values()]
    tensors = [tensor.detach() for tensor in tensors]
    buffers = [torch.empty_like(tensor) for tensor in tensors]

    def plain() -> None:
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)

    base = measure(plain)
    first, slot = Snapshot(), Snapshot()
    before = resident()
    started = time.process_time()
    first.take(state, 0)
    first_take = 1000 * (time.process_time() - started)
    slot.take(state, 0)
    grown = (resident() - before) / 2
    rows = [
        ("copy into preallocated memory", base, None),
        ("take", measure(lambda: slot.take(state, 0)), COPY_BAR),
        ("put", measure(lambda: slot.put(state)), COPY_BAR),
        ("take, the first time", first_take, None),
        ("clone of every tensor", measure(lambda: [t.clone() for t in tensors]), None),
    ]
    print(f"{size}: {slot.num_bytes / 2**20:.0f} MiB a slot, resident {grown / 2**20:.0f} MiB")
    return [
        [
            size,
            name,
            f"{ms:.1f}",
            f"{ms / base:.2f}",
            "" if bar is None else ("yes" if ms / base <= bar else "NO"),
        ]
        for name, ms, bar in rows
    ]


def steps(size: str, folder: Path) -> list[str]:
    """The row of a step with a snapshot every 10, against the same in `protect`."""
    protect = Trimtab(size, folder / "protect", mode="protect")
    recover = Recover(size, folder / "recover")
    contenders: list[Contender] = [protect, recover]
    vocabulary = protect.model.config.vocab_size
    short, full = (torch.randint(0, vocabulary, shape) for shape in (SHORT_TOKENS, STEP_TOKENS))
    for turn, one in itertools.product(range(WARM_ROUNDS + STEP_ROUNDS), contenders):
        if turn == WARM_ROUNDS:
            one.wholes.clear()
        one.step(short)
    extra = statistics.mean(recover.wholes) - statistics.mean(protect.wholes)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        protect.step(full)
        seconds.append(time.process_time() - started)
    share = 1 + extra / min(seconds)
    for one in contenders:
        one.close()
    verdict = "yes" if share <= STEP_BAR else "NO"
    return [size, f"{1000 * min(seconds):.0f}", f"{1000 * extra:.2f}", f"{share:.4f}", verdict]


def main() -> None:
    """Measure and publish: `snapshots [SIZE ...]`."""
    torch.set_num_threads(1)
    sizes = sys.argv[1:] or ["x1"]
    with tempfile.TemporaryDirectory() as folder:
        taken = [row for size in sizes for row in copies(size, Path(folder) / size)]
        stepped = [steps(size, Path(folder) / size) for size in sizes]
    body = (
        f"CPU time, least of {ROUNDS}; fused AdamW in fp32, one thread. The bar of a copy is "
        f"{COPY_BAR} times the plain one.\n\n"
        + table(("size", "what", "ms", "times the plain copy", "within bar"), taken)
        + f"\n\nA step of `recover` with a snapshot every 10 against `protect`: mean CPU time of "
        f"{STEP_ROUNDS} interleaved steps of {SHORT_TOKENS[0]} x {SHORT_TOKENS[1]} tokens, "
        f"relative to a step of {STEP_TOKENS[0]} x {STEP_TOKENS[1]}. Bar: {STEP_BAR}.\n\n"
        + table(("size", "step, ms", "extra, ms", "times `protect`", "within bar"), stepped)
    )
    publish("Cost of snapshots", "scripts/bench snapshots", body)


if __name__ == "__main__":
    main()
