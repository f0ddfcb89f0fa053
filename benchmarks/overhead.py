"""What watching costs: the tail of a step with and without a guard, in one process, interleaved."""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import trimtab
from benchmarks.operations import Counting
from benchmarks.results import publish, table
from trimtab.lab.model import Gpt
from trimtab.lab.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.sizes import SIZES

PAIRS = 110
BARE_STEPS = 8
STEP_TOKENS = (4, 256)
TAIL_TOKENS = (1, 64)
"""The tail does not depend on the batch; a small one buys more pairs."""

BAR = 0.01


@dataclass
class Contender:
    """One model that is trained in turn with the others."""

    name: str
    model: Gpt
    optimizer: torch.optim.Optimizer
    guard: Any
    tails: list[float] = field(default_factory=list)

    def step(self, tokens: torch.Tensor) -> float:
        """One step; returns the CPU time from the end of backward to the end of zero_grad."""
        loss = self.model(tokens, tokens).loss
        self.guard.record(loss=loss, tokens=tokens.numel())
        loss.backward()
        started = time.process_time()
        self.guard.clip_grad_norm_(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - started


def contender(name: str, size: str, folder: Path, *, enabled: bool) -> Contender:
    """A model with or without a guard; all start alike."""
    model = Gpt(SIZES[size], generator=torch.Generator().manual_seed(0))
    optimizer = make_optimizer(model, OptimizerConfig(lr=3e-4))
    guard = trimtab.watch(model, optimizer, run_dir=folder / name, enabled=enabled)
    return Contender(name, model, optimizer, guard)


def measure(size: str, folder: Path) -> list[str]:
    """One row of the table."""
    vocabulary = SIZES[size].vocab_size
    bare, same, watched = (
        contender(name, size, folder / size, enabled=name == "watched")
        for name in ("bare", "same", "watched")
    )
    everybody = [bare, same, watched]
    short, full = (torch.randint(0, vocabulary, shape) for shape in (TAIL_TOKENS, STEP_TOKENS))
    for one in everybody:
        one.step(short)
    for pair in range(PAIRS):
        # Every order equally often, so that a drift of the machine favours nobody.
        for one in everybody[pair % 3 :] + everybody[: pair % 3]:
            one.tails.append(one.step(short))
    steps = []
    for _ in range(BARE_STEPS):
        started = time.process_time()
        bare.step(full)
        steps.append(time.process_time() - started)
    step = statistics.median(steps)
    base = statistics.median(bare.tails)
    extra = (statistics.median(watched.tails) - base) / step
    mean_extra = (statistics.mean(watched.tails) - statistics.mean(bare.tails)) / step
    noise = (statistics.median(same.tails) - base) / step
    counts = [_operations(one, short) for one in (watched, bare)]
    watched.guard.close()
    return [
        size,
        f"{1e3 * step:.0f} ms",
        f"{1e3 * base:.1f} ms",
        f"{100 * extra:+.2f} %",
        f"{100 * mean_extra:+.2f} %",
        f"{100 * noise:+.2f} %",
        f"{(counts[0] - counts[1]) / 10:.0f}",
        "yes" if extra <= BAR else "NO",
    ]


def _operations(one: Contender, tokens: torch.Tensor) -> int:
    """Operations of ten steps, one of them with telemetry."""
    counting = Counting()
    with counting:
        for _ in range(10):
            one.step(tokens)
    return counting.counts.total()


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    sizes = sys.argv[1:] or ["10M", "x1"]
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(size, Path(folder)) for size in sizes]
    header = (
        "size",
        "bare step",
        "bare tail",
        "extra, median",
        "extra, mean",
        "A/A, median",
        "extra operations a step",
        f"within {100 * BAR:.0f} %",
    )
    body = (
        "CPU time of the tail (end of backward to end of zero_grad) with everything on at its "
        f"default cadence, less that of the bare loop, by the time of a bare step of "
        f"{STEP_TOKENS[0]} x {STEP_TOKENS[1]} tokens; {PAIRS} interleaved rounds, fused AdamW, one "
        "thread. A/A is a second bare loop against the first. Telemetry falls on every tenth step "
        "and so shows in the mean, not in the median.\n\n"
    )
    publish("Cost of observing", "scripts/bench overhead", body + table(header, rows))


if __name__ == "__main__":
    main()
