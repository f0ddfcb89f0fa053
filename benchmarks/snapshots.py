"""What returning to an earlier state costs: `scripts/bench snapshots [SIZE] [ROUNDS]`.

A snapshot is taken and put back beside a plain copy of the same tensors and beside torch's
distributed checkpoints, and steps are trained in `recover` beside `protect`, all in turn in one
process: drift of the machine favours none of them.
"""

import gc
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.contenders import Contender, Trimtab
from benchmarks.results import publish, table
from trimtab.lab.model.sizes import SIZES
from trimtab.state.checkpoints.content import DcpCheckpointer, content_of, put_content
from trimtab.state.host_copy import detached
from trimtab.state.snapshot import Snapshot
from trimtab.state.training_state import TrainingState

ROUNDS = 5
STEP_TOKENS = (4, 256)
SHORT_TOKENS = (1, 64)
"""What a snapshot costs does not depend on the batch; a small batch allows more steps."""
EVERY = 10
WARM_STEPS = 80
"""Steps until every slot has been filled once: the first time, its memory is new."""
COPY_BAR, STEP_BAR = 1.3, 1.01


@dataclass(slots=True)
class Timed:
    """CPU time and clock of one thing, over the rounds."""

    run: Callable[[], object]
    cpu: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def go(self) -> None:
        """Do it once."""
        cpu, clock = time.process_time(), time.perf_counter()
        self.run()
        self.cpu.append(time.process_time() - cpu)
        self.clock.append(time.perf_counter() - clock)

    def row(self, name: str, base: "Timed", bar: float | None) -> list[str]:
        """A row of the table: median times, and the ratios to a different thing."""
        cpu, clock = statistics.median(self.cpu), statistics.median(self.clock)
        ratio = cpu / statistics.median(base.cpu)
        met = "" if bar is None else ("yes" if ratio <= bar else "NO")
        return [
            name,
            f"{1e3 * cpu:.0f} ms",
            f"{ratio:.2f}",
            f"{1e3 * clock:.0f} ms",
            f"{clock / statistics.median(base.clock):.2f}",
            "" if bar is None else f"{bar}",
            met,
        ]


def tensors_of(state: TrainingState) -> list[torch.Tensor]:
    """Every tensor that a snapshot holds."""
    named = state.tensors()
    found = [*named["parameters"].values(), *named["buffers"].values()]
    for states in state.optimizer_state():
        for values in states.values():
            found += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return [detached(tensor) for tensor in found]


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """The plain copy: tensor by tensor into memory that exists."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def measure_copies(state: TrainingState, folder: Path, rounds: int) -> dict[str, Timed]:
    """All ways to keep a state and to return to it, in turn."""
    sources = tensors_of(state)
    targets = [torch.empty_like(source) for source in sources]
    snapshot = Snapshot()
    dcp = DcpCheckpointer()
    saved = folder / "dcp"

    def load() -> None:
        content = content_of(state)
        dcp.load(saved, content)
        put_content(state, content)

    things = {
        "copy, tensor by tensor": Timed(lambda: copy_all(targets, sources)),
        "snapshot, take": Timed(lambda: snapshot.take(state, 0)),
        "copy back, tensor by tensor": Timed(lambda: copy_all(sources, targets)),
        "snapshot, put": Timed(lambda: snapshot.put(state)),
        "dcp.save": Timed(lambda: dcp.save(saved, content_of(state))),
        "dcp.load": Timed(load),
    }
    for turn in range(rounds + 1):
        shutil.rmtree(saved, ignore_errors=True)
        for thing in things.values():
            thing.go()
        if turn == 0:  # buffers are made and pages are touched: not what later ones cost
            for thing in things.values():
                thing.cpu.clear()
                thing.clock.clear()
    return things


class Recover(Trimtab):
    """Our guard in `recover`: its snapshots are taken when the next step is asked for."""

    def __init__(self, size: str, folder: Path) -> None:
        super().__init__(size, folder, mode="recover")
        self._tokens: list[torch.Tensor] = []
        self._steps = self.guard.steps(self._batches())

    def _batches(self) -> Iterator[torch.Tensor]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Mean CPU time of a step, in seconds."""

    full: float
    """A step of full length in `protect`."""
    recover: float
    """What `recover` adds, with a snapshot every 10 steps."""
    again: float
    """What a second run in `protect` adds: the noise."""


def measure_steps(size: str, folder: Path, rounds: int) -> StepCost:
    """Steps in `protect`, in `protect` again and in `recover`, in turn; short, to have many."""
    loops = [
        Trimtab(size, folder / "protect", mode="protect"),
        Trimtab(size, folder / "again", mode="protect"),
        Recover(size, folder / "recover"),
    ]
    short, full = (
        torch.randint(0, SIZES[size].vocab_size, shape) for shape in (SHORT_TOKENS, STEP_TOKENS)
    )
    for turn in range(WARM_STEPS + EVERY * rounds):
        for loop in loops:
            if turn == WARM_STEPS:
                loop.wholes.clear()
            loop.step(short)
    protect, again, recover = (statistics.mean(loop.wholes) for loop in loops)
    loops[0].wholes.clear()
    for _ in range(3):
        loops[0].step(full)
    seconds = statistics.mean(loops[0].wholes)
    for loop in loops:
        loop.close()
    return StepCost(full=seconds, recover=recover - protect, again=again - protect)


def measure_memory(state: TrainingState) -> tuple[int, int, int]:
    """Bytes of the tensors, of a snapshot by its own count, and of resident memory it adds."""
    first = Snapshot()
    first.take(state, 0)
    gc.collect()
    before = resident_bytes()
    second = Snapshot()
    second.take(state, 0)
    added = resident_bytes() - before
    return sum(tensor.nbytes for tensor in tensors_of(state)), second.num_bytes, added


def resident_bytes() -> int:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def write_up(
    size: str,
    copies: dict[str, Timed],
    steps: StepCost,
    memory: tuple[int, int, int],
    rounds: int,
) -> str:
    """The section of RESULTS.md."""
    take, put = copies["snapshot, take"], copies["snapshot, put"]
    copy, back = copies["copy, tensor by tensor"], copies["copy back, tensor by tensor"]
    rows = [
        copy.row("copy, tensor by tensor", copy, None),
        take.row("snapshot, take", copy, COPY_BAR),
        back.row("copy back, tensor by tensor", copy, None),
        put.row("snapshot, put", back, COPY_BAR),
        copies["dcp.save"].row("dcp.save, against take", take, None),
        copies["dcp.load"].row("dcp.load, against put", put, None),
    ]
    header = ("", "CPU", "ratio", "clock", "ratio", "bar (CPU)", "met")
    share = 1 + steps.recover / steps.full
    met = "yes" if share <= STEP_BAR else "NO"
    held, counted, added = memory
    exact = "yes" if held == counted else "NO"
    step_rows: list[list[object]] = [
        ["`protect`", f"{1e3 * steps.full:.0f} ms", "1", "", ""],
        ["`protect` again", "", f"{1 + steps.again / steps.full:.4f}", "", ""],
        ["`recover`, a snapshot every 10 steps", "", f"{share:.4f}", STEP_BAR, met],
    ]
    return (
        f"{SIZES[size].parameters / 1e6:.1f}M parameters, fused AdamW in fp32, one thread; medians "
        f"of {rounds} interleaved rounds after one that is not counted. The ratio of `put` is to "
        "the copy back, those of DCP are to the snapshot.\n\n"
        + table(header, rows)
        + f"\n\nSteps: mean CPU time of {EVERY * rounds} steps of {SHORT_TOKENS[0]} x "
        f"{SHORT_TOKENS[1]} tokens in turn; the difference to `protect` is relative to a step of "
        f"{STEP_TOKENS[0]} x {STEP_TOKENS[1]}.\n\n"
        + table(("steps", "mean", "against `protect`", "bar", "met"), step_rows)
        + f"\n\nMemory: the tensors have {held:,} bytes, a snapshot counts {counted:,} (equal: "
        f"{exact}), and a second snapshot adds {added:,} bytes of resident memory.\n"
    )


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    size = sys.argv[1] if len(sys.argv) > 1 else "x1"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        loop = Contender(size, Path(folder))
        state = TrainingState(loop.model, [loop.optimizer])
        loop.step(torch.randint(0, SIZES[size].vocab_size, (1, 64)))
        memory = measure_memory(state)
        copies = measure_copies(state, Path(folder), rounds)
        steps = measure_steps(size, Path(folder), rounds)
        body = write_up(size, copies, steps, memory, rounds)
    publish("Cost of snapshots", "scripts/bench snapshots", body)


if __name__ == "__main__":
    main()
