"""What protection is worth: faults with and without it, beside clean twins (`scripts/bench
lab_protect`).

Each of 20 seeds is trained with each fault while trimtab observes and while it protects, and
without any fault. What counts is the mean loss of the 10 steps behind the fault over that of the
clean twin. A discarded step is a step of learning less, so there is a second twin: one that passes
over the steps of the fault as if their batches had never come.
"""

import dataclasses
import logging
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.results import publish, table
from trimtab.core import signals
from trimtab.core.block import Block, FloatArray
from trimtab.core.causes import Cause
from trimtab.core.config import Config, Mode
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.catalogue import kind_named
from trimtab.lab.checkpoints import Run
from trimtab.lab.disturbance import Base, Disturbance, Parts
from trimtab.lab.faults.f11_fp16_overflow import Fp16Overflow
from trimtab.lab.scenario import Scenario
from trimtab.lab.touch import current_step
from trimtab.lab.train import train

SEEDS = range(20)
STEPS, SHORT_STEPS = 600, 300
"""The length of the lab's suite, and half of it for faults of few steps. Onsets lie between 0.42
and 0.62 of it, and a run is left behind them. At step 120 the loss still falls by 0.005 a step: 4
steps less to learn from are the whole bar there, and 0.008 at step 300."""

BEHIND = 10
BAR = 0.02
HEALTHY = ("cooldown", "warmup-end", "batch-ramp", "length-change", "mix-switch")
HEALTHY_SEEDS, HEALTHY_STEPS = range(1000, 1016), 400
"""Other seeds than those that any threshold was looked at with."""

_WATCHING = Config.from_dict({"live": {"telemetry_steps": 1000, "activations": False}})
"""Telemetry does not decide about steps."""


class ShortOverflow(Fp16Overflow):
    """Three steps: activations 60 times and 3,600 times too large, then past the range of fp16."""

    heals = True

    @property
    def steps(self) -> int:
        """The third is too much."""
        return 3

    @property
    def strength(self) -> float:
        """Of one step."""
        return 60.0


class PassedOver(Disturbance):
    """The optimizer does not move for so many steps; everything else goes on."""

    cause: ClassVar[Cause | None] = None
    title = "steps without an update"
    strength_name = "steps"
    num_steps: int = 0

    @property
    def steps(self) -> int:
        """As many as it was told."""
        return self.num_steps

    def attach(self, parts: Parts) -> Run:
        """Take the gradients away in front of the update."""

        def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if self.covers(current_step(parts.run)):
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None

        parts.run.optimizer.register_step_pre_hook(hook)
        return parts.run


@dataclass(frozen=True)
class Trouble:
    """A fault that a row of the table is about."""

    title: str
    kind: str
    severity: float = 1.0
    make: type[Disturbance] | None = None
    steps: int = SHORT_STEPS
    modes: tuple[Mode, ...] = (Mode.OBSERVE, Mode.PROTECT)
    has_skipping_twin: bool = False

    def scenario(self, seed: int) -> Scenario:
        """The run that has it."""
        return Scenario(kind=self.kind, seed=seed, steps=self.steps, severity=self.severity)

    def disturbance(self, seed: int) -> Disturbance:
        """What is done to that run."""
        make = self.make or kind_named(self.kind)
        onset = self.scenario(seed).onset
        return make(onset=onset, severity=self.severity, seed=seed)


TROUBLES = (
    Trouble(
        "F02 rare or repeated tokens, 1 to 5 batches", "F02", steps=STEPS, has_skipping_twin=True
    ),
    Trouble("F11 fp16 overflow, 3 steps", "F11", make=ShortOverflow),
    Trouble("F12 0/0 in the loss, 1 batch", "F12", severity=0.0),
    Trouble(
        "F12 0/0 in the loss, 8 batches",
        "F12",
        steps=STEPS,
        modes=(Mode.PROTECT,),
        has_skipping_twin=True,
    ),
    Trouble("F13 bit 30 of a gradient", "F13"),
)


class _Enough(Exception):
    """The run has come as far as it is looked at."""


@dataclass(frozen=True)
class Trace:
    """What a run looked like."""

    losses: FloatArray
    discarded: int


class Lab:
    """Trains runs, each only as far as it is looked at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clean: dict[tuple[Base, int, int], FloatArray] = {}

    def clean(self, scenario: Scenario) -> FloatArray:
        """The losses of the run with nothing done to it."""
        key = (scenario.needs, scenario.steps, scenario.seed)
        if key not in self._clean:
            self._clean[key] = self.trace(scenario, None, Mode.OBSERVE).losses
        return self._clean[key]

    def trace(self, scenario: Scenario, disturbance: Disturbance | None, mode: Mode) -> Trace:
        """A run with something done to it, or nothing."""
        settings = scenario.setting.config(scenario.needs, scenario.steps)
        config = dataclasses.replace(settings, measure=False, eval_steps=scenario.steps)
        if disturbance is not None:
            config = disturbance.settings(config)
        # The latest onset and the longest fault, if it is to serve for all.
        latest = round(0.62 * scenario.steps) + 8
        last = (latest if disturbance is None else _end(disturbance, scenario.steps)) + BEHIND

        def on_step(done: int, loss: Tensor) -> None:
            if done == last:
                raise _Enough

        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(_Enough):
            train(
                config,
                self._folder,
                on_step=on_step,
                mode=mode,
                watching=_WATCHING,
                disturbance=disturbance,
            )
        block = read_journal(RunDirectory(self._folder)).block
        return Trace(block.column(signals.LOSS).values, _discards(block))


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)  # every discard would be told
    seeds = SEEDS[: int(sys.argv[1])] if len(sys.argv) > 1 else SEEDS
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(Path(name))
        rows = [row for trouble in TROUBLES for row in _rows(lab, trouble, seeds)]
        discarded, steps = _healthy(lab, HEALTHY_SEEDS[: len(seeds)])
    body = (
        f"{len(seeds)} seeds of both regimes, runs of {STEPS} steps (F02, 8 batches of F12) or "
        f"{SHORT_STEPS}, left {BEHIND} steps behind the fault. Excess: mean loss of these "
        f"{BEHIND} steps minus the clean twin's. Bar: at "
        f"most +{BAR} in each seed with protection. A discarded step is also a step of learning "
        "less, which is all that is left of F12; the last column is the worst excess over a twin "
        "that passes over the same steps as if their batches had never come.\n\n"
        + table(
            [
                *("fault", "mode", "median excess", "worst", f"seeds in {BAR}"),
                *("steps discarded", "worst over the skipping twin"),
            ],
            rows,
        )
        + f"\n\nHealthy and hard-negative runs with protection ({', '.join(HEALTHY)}; "
        f"{len(HEALTHY_SEEDS)} seeds that no threshold was looked at with): {discarded} of "
        f"{steps:,} steps discarded (bar: 1 in 10,000)."
    )
    publish("Protection in the lab", "scripts/bench lab_protect", body)


def _rows(lab: Lab, trouble: Trouble, seeds: Sequence[int]) -> Iterator[list[object]]:
    """One row for each mode."""
    excesses: dict[Mode, list[float]] = {mode: [] for mode in trouble.modes}
    over_skipping: list[float] = []
    discarded = 0
    for seed in seeds:
        scenario, disturbance = trouble.scenario(seed), trouble.disturbance(seed)
        end = _end(disturbance, trouble.steps)
        window = slice(end, end + BEHIND)
        clean = lab.clean(scenario)[window]
        for mode, found in excesses.items():
            trace = lab.trace(scenario, trouble.disturbance(seed), mode)
            found.append(float(np.mean(trace.losses[window] - clean)))
        discarded += trace.discarded  # of the last mode, which protects
        if trouble.has_skipping_twin:
            skipping = PassedOver(onset=disturbance.onset, severity=1.0, seed=seed)
            skipping.num_steps = disturbance.steps or 0
            twin = lab.trace(scenario, skipping, Mode.PROTECT)
            over_skipping.append(float(np.mean(trace.losses[window] - twin.losses[window])))
        tell = {mode.value: round(found[-1], 4) for mode, found in excesses.items()}
        print(trouble.title, seed, tell, over_skipping[-1:], trace.discarded, file=sys.stderr)
    for mode, found in excesses.items():
        known = [excess for excess in found if excess == excess]
        acts = mode is Mode.PROTECT
        yield [
            trouble.title,
            mode,
            f"{statistics.median(known):+.4f}" if known else "NaN",
            f"{max(known):+.4f}" if len(known) == len(found) else "NaN",
            f"{sum(excess <= BAR for excess in found)}/{len(found)}",  # NaN is not within
            discarded if acts else 0,
            f"{max(over_skipping):+.4f}" if acts and over_skipping else "",
        ]


def _healthy(lab: Lab, seeds: Sequence[int]) -> tuple[int, int]:
    """Steps discarded, of how many, where nothing is wrong."""
    traces = [
        lab.trace(scenario, scenario.disturbance(), Mode.PROTECT)
        for seed in seeds
        for kind in HEALTHY
        for scenario in [Scenario(kind=kind, seed=seed, steps=HEALTHY_STEPS)]
    ]
    return sum(trace.discarded for trace in traces), sum(len(trace.losses) for trace in traces)


def _end(disturbance: Disturbance | None, steps: int) -> int:
    """The first step behind a disturbance; behind the run if it stays."""
    end = None if disturbance is None else disturbance.end
    return steps if end is None else end


def _discards(run: Block) -> int:
    column = run.column(signals.DISCARDED)
    return int((column.values[column.present] > 0).sum())


if __name__ == "__main__":
    main()
