"""The cost of a guard where a step takes less than a millisecond: `scripts/bench small_steps`.

A classifier of three layers is trained bare and in each mode, in turns of 20 steps. The costs of a
guard that do not depend on the model, Python and the launch of small kernels, are all there is.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import trimtab
from benchmarks.results import publish, table

MODES = ("observe", "protect", "recover")
BARS = {"observe": 1.5, "protect": 2.0}
STEPS, ROUNDS, WARM_UP = 20, 100, 20


class Loop:
    """A small classifier and its loop, bare or watched."""

    def __init__(self, mode: str | None, folder: Path) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
        self._model = nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._inputs, self._labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
        self._guard = None
        if mode is not None:
            self._guard = trimtab.watch(
                self._model, self._optimizer, run_dir=folder / mode, mode=mode
            )
        self.seconds: list[float] = []

    def train(self) -> None:
        """Do some steps and keep the CPU time of one."""
        started = time.process_time()
        for _ in range(STEPS):
            loss = nn.functional.cross_entropy(self._model(self._inputs), self._labels)
            if self._guard is not None:
                self._guard.record(loss=loss)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        self.seconds.append((time.process_time() - started) / STEPS)

    def close(self) -> None:
        """End the guard."""
        if self._guard is not None:
            self._guard.close()


def main() -> None:
    """Measure in turns and publish."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        loops = {mode or "bare": Loop(mode, Path(name)) for mode in (None, *MODES)}
        for _ in range(WARM_UP + ROUNDS):
            for loop in loops.values():
                loop.train()
        for loop in loops.values():
            loop.close()
    costs = {mode: statistics.median(one.seconds[WARM_UP:]) for mode, one in loops.items()}
    ratios = {mode: seconds / costs["bare"] for mode, seconds in costs.items()}
    rows = [
        [mode, f"{1e3 * costs[mode]:.2f} ms", f"x{ratios[mode]:.2f}", f"x{BARS.get(mode, '-')}"]
        for mode in ("bare", *MODES)
    ]
    body = (
        "CPU time of a step of a classifier with 26,000 parameters, all threads of the process, "
        f"median of {ROUNDS} turns of {STEPS} steps, interleaved.\n\n"
    )
    publish(
        "Cost of small steps",
        "scripts/bench small_steps",
        body + table(["mode", "step", "ratio", "bar"], rows),
        [
            (f"a step of {1e3 * costs['bare']:.1f} ms, {mode}", f"x{ratios[mode]:.2f}", f"x{bar}")
            for mode, bar in BARS.items()
        ],
    )


if __name__ == "__main__":
    main()
