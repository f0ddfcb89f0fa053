"""The share of a training step that a guard takes: `scripts/bench overhead [--dry]`.

A model of 10 million parameters is trained in each mode with 512 tokens a step. One loop runs at a
time, so that nothing else of the process is in its steps; the clock is the training thread's own.
Another version: PYTHONPATH=OTHER_CHECKOUT/src scripts/bench overhead --dry.
"""

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import trimtab
from benchmarks.entrances import Entrances
from benchmarks.results import publish, table

WIDTH, BLOCKS = 512, 5
"""10.5 million parameters in 20 tensors."""

ROWS, FEW_ROWS = 512, 128
"""Tokens of a step; few ones are measured for information."""

STEPS, WARM_UP = 64, 12
"""Steps that are measured, and steps before them: moments are made and the first telemetry is
taken, before the guard knows how long a step takes."""

LONGEST_BAR = 0.10
BARS = {"observe": 0.01, "protect": 0.01, "recover": 0.02}
"""The share of a step inside the guard: of the longest step, and of the mean in each mode."""


def make_model() -> nn.Module:
    """Return the model, the same in every loop."""
    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(BLOCKS)
    )
    return nn.Sequential(*blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a guard takes of each step, in seconds."""

    inside: Sequence[float]
    """Thread time inside the entrances."""
    own: Sequence[float]
    """Thread time of the rest of the step: the user's own work."""

    @property
    def step(self) -> float:
        return statistics.mean(self.own)

    @property
    def mean(self) -> float:
        return statistics.mean(self.inside) / self.step

    @property
    def median(self) -> float:
        return statistics.median(self.inside) / self.step

    @property
    def longest(self) -> float:
        """The share of the step with the most inside, of a usual step."""
        return max(self.inside) / self.step


def measure(mode: str, num_rows: int, run_dir: Path) -> Overhead:
    """Train in a mode, and time every step."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(num_rows, WIDTH)
    inside, own = [], []
    with trimtab.watch(model, optimizer, run_dir=run_dir, mode=mode) as guard:
        clock = Entrances(guard, optimizer)
        with clock.without_clipping():
            for number in range(WARM_UP + STEPS):
                began = time.thread_time()
                loss = (model(inputs) - inputs).square().mean()
                guard.record(loss=loss, tokens=num_rows)
                loss.backward()
                guard.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
                spent = clock.pop()
                if number >= WARM_UP:
                    inside.append(spent)
                    own.append(time.thread_time() - began - spent)
    return Overhead(inside=inside, own=own)


def percent(share: float) -> str:
    return f"{100 * share:+.2f} %"


HEADER = ("tokens", "mode", "step", "mean", "median", "longest step", "bars", "met")


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench overhead")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    rows, headlines = [], []
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in (ROWS, FEW_ROWS):
            for mode, bar in BARS.items():
                found = measure(mode, num_rows, Path(folder) / f"{mode}-{num_rows}")
                figures = [percent(one) for one in (found.mean, found.median, found.longest)]
                bars = met = "-"
                if num_rows == ROWS:
                    is_met = found.mean <= bar and found.longest <= LONGEST_BAR
                    bars = f"{percent(bar)}, longest {percent(LONGEST_BAR)}"
                    met = "yes" if is_met else "NO"
                    what = f"{mode}, 10M parameters, {ROWS} tokens"
                    headlines.append((f"{what}: longer steps", figures[0], percent(bar)))
                    headlines.append((f"{what}: the longest step", figures[2], "+10 %"))
                step = f"{1e3 * found.step:.0f} ms"
                rows.append([num_rows, mode, step, *figures, bars, met])
                print(rows[-1], flush=True)
    body = (
        f"10.5 million parameters in 20 tensors, fused AdamW, `guard.clip_grad_norm_`, one thread; "
        f"{STEPS} steps after {WARM_UP}. Thread time inside the guard's entrances (`record`, "
        "clipping without torch's own, the hooks of the optimizer), of the thread time of the rest "
        "of the step: the mean has telemetry, audits and snapshots in it, the median has not. The "
        "longest step is the one with the most inside.\n\n"
    ) + table(HEADER, rows)
    command = "scripts/bench overhead"
    publish("Cost of long steps", command, body, headlines, is_dry=given.dry)


if __name__ == "__main__":
    main()
