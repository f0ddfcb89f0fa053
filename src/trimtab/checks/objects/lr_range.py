"""Learning-rate range test: the rate grows step by step until trimtab's detectors alarm."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text
from torch import nn

from trimtab.checks.objects.inputs import Inputs, Loss, model_loss
from trimtab.checks.objects.measure.kept_state import KeptState
from trimtab.checks.objects.measure.loader import cut, draw
from trimtab.checks.objects.measure.measurements import PASS_ELEMENTS, PASS_ROWS
from trimtab.checks.objects.measure.training import run_steps
from trimtab.checks.rule import NotMeasured, number
from trimtab.core import signals
from trimtab.core.block import Block, Column, Record
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Severity
from trimtab.judge import Judge
from trimtab.report.sparkline import sparkline

LOWEST, HIGHEST = 1e-6, 10.0
"""Rates of the first and the last step. Published AdamW rates are 1e-5 to 3e-3."""

STEPS = 120
"""Steps from the lowest to the highest rate: 14 % more at each."""

SAFETY = 3.0
"""A rate this many times below where the loss stops falling. Smith 2017 and fast.ai advise 3 to 10
below the lowest loss."""

NEAR_LOWEST = 0.02
"""Share above its lowest value at which the smoothed loss has stopped falling."""

MEMORY = 0.8
"""Of the smoothed loss: 5 steps, in which the rate doubles."""

GROSS = 4.0
"""A loss this many times the lowest one ends the test where the judge has no history yet. Source:
fast.ai's range test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LrRange:
    """What the test saw."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    stop: str
    """What ended the test."""
    highest: float | None
    """Rate at the alarm; None if none was raised."""

    @property
    def turning(self) -> float:
        """The rate from which on the smoothed loss does not fall any more."""
        smooth = _smoothed(self.losses)
        limit = (1 + NEAR_LOWEST) * min(smooth)
        return next(rate for rate, loss in zip(self.rates, smooth, strict=True) if loss <= limit)

    @property
    def advised(self) -> float | None:
        """A peak rate to begin with; None if no rate up to the highest did harm."""
        return None if self.highest is None else min(self.highest, self.turning) / SAFETY

    @property
    def steepest(self) -> float:
        """The rate at which the smoothed loss falls fastest, before it stops falling."""
        smooth = _smoothed(self.losses)[: self.rates.index(self.turning) + 1]
        falls = [later - now for now, later in pairwise(smooth)]
        return self.rates[falls.index(min(falls))] if falls else self.rates[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "rates": list(self.rates),
            "losses": [loss if math.isfinite(loss) else None for loss in self.losses],
            "stop": self.stop,
            "highest": self.highest,
            "advised": self.advised,
            "turning": self.turning,
            "steepest": self.steepest,
        }


def range_view(found: LrRange) -> RenderableType:
    """Return the losses as a curve, and which rate to begin with, for a terminal."""
    low, high = number(found.rates[0]), number(found.rates[-1])
    lines = [
        Text(f"loss over the learning rate, {low} to {high}: {len(found.rates)} steps"),
        Text(sparkline(Column.complete(np.asarray(found.losses)), 80)),
        Text(f"stopped by: {found.stop}"),
        Text(
            f"falls fastest near {number(found.steepest)}, not any more from "
            f"{number(found.turning)} on"
        ),
    ]
    if found.advised is not None:
        text = f"begin with a peak rate of at most {number(found.advised)}"
        lines.append(Text(text, style="bold"))
    return Group(*lines)


def lr_range_test(
    model: nn.Module,
    optimizer: Any,
    *,
    loader: Any,
    loss: Loss | None = None,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    num_steps: int = STEPS,
    **others: Any,
) -> LrRange:
    """Train with a growing learning rate until an alarm; everything is restored afterwards.

    `others` are further arguments of `trimtab.check`. Groups keep the ratio of their rates.
    """
    inputs = Inputs(model, optimizer, loader=loader, loss=loss or model_loss, **others)
    kept = KeptState(inputs)
    try:
        batches = [cut(batch, PASS_ROWS, PASS_ELEMENTS) for batch in draw(loader)]
        return _run(inputs, batches, lowest, highest, num_steps)
    except NotMeasured as reason:
        raise ConfigError(f"no range test: {reason}") from reason
    finally:
        kept.restore()


def _run(
    inputs: Inputs, batches: list[Any], lowest: float, highest: float, num_steps: int
) -> LrRange:
    first = [
        [float(g.get("initial_lr", g["lr"])) for g in o.param_groups] for o in inputs.optimizers
    ]
    largest = max(max(rates) for rates in first) or 1.0
    shares = [[rate / largest for rate in rates] for rates in first]
    judge = Judge()
    rates: list[float] = []
    losses: list[float] = []
    stop = ""
    for step in range(num_steps):
        rate = lowest * (highest / lowest) ** (step / max(num_steps - 1, 1))
        scaled = [[rate * share for share in values] for values in shares]
        (value,), (norm,) = run_steps(inputs, [batches[step % len(batches)]], scaled, 1)
        rates.append(rate)
        losses.append(value)
        stop = _alarm(judge, step, value, norm) or _gross(losses)
        if stop:
            break
    return LrRange(
        rates=tuple(rates),
        losses=tuple(losses),
        stop=stop or f"no alarm up to {highest:g}",
        highest=rates[-1] if stop else None,
    )


def _alarm(judge: Judge, step: int, loss: float, norm: float) -> str:
    """Return the first alarm of the detectors at this step, if there is one."""
    # The rate itself is left out: that it grows is no incident here.
    seen = {signals.LOSS: loss, signals.GRAD_NORM: norm}
    block = Block.from_records([Record(step, step, seen)])
    found = judge.update(block).findings
    alarms = [finding for finding in found if finding.severity is Severity.ALARM]
    return str(alarms[0].symptom) if alarms else ""


def _gross(losses: list[float]) -> str:
    return "loss far above its lowest" if losses[-1] > GROSS * min(losses) else ""


def _smoothed(losses: tuple[float, ...]) -> list[float]:
    """Return the exponential average without its bias at the start; NaN counts as infinite."""
    average, found = 0.0, []
    for step, loss in enumerate(losses, start=1):
        average = MEMORY * average + (1 - MEMORY) * (loss if math.isfinite(loss) else math.inf)
        found.append(average / (1 - MEMORY**step))
    return found
