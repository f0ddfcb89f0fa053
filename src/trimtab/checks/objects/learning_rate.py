"""Which learning rate: `trimtab check --lr-range` finds one, `--widths` says where it holds.

Range test: the rate grows step by step until trimtab's detectors alarm. Coordinate check: how what
a few steps change in each layer depends on the width. Under muP it is the same at every width, so a
rate that was tuned on a narrow model fits a wide one; in the standard parametrisation it grows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from trimtab.checks.objects.inputs import Inputs, Loss, as_setup, call_setup, model_loss
from trimtab.checks.objects.measure.kept_state import KeptState
from trimtab.checks.objects.measure.loader import cut, draw
from trimtab.checks.objects.measure.measurements import PASS_ELEMENTS, PASS_ROWS
from trimtab.checks.objects.measure.passes import main_loss
from trimtab.checks.objects.measure.trace import Trace, rms
from trimtab.checks.objects.measure.training import run_steps
from trimtab.checks.rule import NotMeasured, brief
from trimtab.core import signals
from trimtab.core.block import Block, Column, Record
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Severity
from trimtab.core.text import printable
from trimtab.judge import Judge
from trimtab.report.sparkline import sparkline
from trimtab.state.batches import clone

# Range test

LOWEST, HIGHEST = 1e-6, 10.0
"""Rates of the first and the last step. Published AdamW rates are 1e-5 to 3e-3."""

RANGE_STEPS = 120
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
    low, high = brief(found.rates[0]), brief(found.rates[-1])
    lines = [
        Text(f"loss over the learning rate, {low} to {high}: {len(found.rates)} steps"),
        Text(sparkline(Column.complete(np.asarray(found.losses)), 80)),
        Text(f"stopped by: {found.stop}"),
        Text(
            f"falls fastest near {brief(found.steepest)}, not any more from "
            f"{brief(found.turning)} on"
        ),
    ]
    if found.advised is not None:
        text = f"begin with a peak rate of at most {brief(found.advised)}"
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
    num_steps: int = RANGE_STEPS,
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


# Coordinate check

COORDINATE_STEPS = 4
"""Steps of training before the check. Source: microsoft/mup checks the first 3 to 4 steps."""

MAX_SLOPE = 0.25
"""Power of the width by which a change may grow or shrink. Theory: 0 under muP, and 0.5 to 1 in the
standard parametrisation with Adam (Yang et al. 2022, Tensor Programs V). Half of the smaller
one."""

ROWS, ELEMENTS = 4, 512
"""Rows and tokens of the batch that is used at every width."""

LOGITS = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCoordinates:
    """One layer over the widths."""

    name: str
    at_init: tuple[float, ...]
    """Root mean square of its output, by width."""
    change: tuple[float, ...]
    """Root mean square of what the steps changed in it."""
    slope: float
    """Power of the width with which the change grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateCheck:
    """The result of a coordinate check: one row per layer."""

    widths: tuple[int, ...]
    layers: tuple[LayerCoordinates, ...]

    @property
    def worst(self) -> LayerCoordinates:
        return max(self.layers, key=lambda layer: _size(layer.slope))

    @property
    def is_stable(self) -> bool:
        return _size(self.worst.slope) <= MAX_SLOPE

    @property
    def advice(self) -> str:
        """What to do about the learning rate at other widths."""
        if self.is_stable:
            return (
                "changes do not depend on the width: a learning rate tuned at one of these widths "
                "can be used at the others"
            )
        worst, ratio = self.worst, self.widths[-1] / self.widths[0]
        if not math.isfinite(worst.slope):
            return (
                f"{worst.name} does not change or is not finite: lower the rate, then check again"
            )
        verb = "grow" if worst.slope > 0 else "shrink"
        return (
            f"changes {verb} with width^{abs(worst.slope):.2f} in {worst.name}: the same rate "
            f"changes it {ratio**worst.slope:.3g} times as much at width {self.widths[-1]} as at "
            f"width {self.widths[0]}. With Adam, divide the rate of hidden matrices, their init "
            "variance and the logits by the ratio of the widths (muP)"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "widths": list(self.widths),
            "steps": COORDINATE_STEPS,
            "stable": self.is_stable,
            "advice": self.advice,
            "layers": [
                {
                    "name": layer.name,
                    "at_init": list(layer.at_init),
                    "change": list(layer.change),
                    "slope": layer.slope if math.isfinite(layer.slope) else None,
                }
                for layer in self.layers
            ],
        }


def coordinates_view(check: CoordinateCheck) -> RenderableType:
    """Return one row per layer for a terminal: what the steps changed at each width."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(f"change after {COORDINATE_STEPS} steps")
    for width in check.widths:
        table.add_column(f"width {width}", justify="right")
    table.add_column("power of width", justify="right")
    for layer in check.layers:
        is_bad = not abs(layer.slope) <= MAX_SLOPE
        slope = f"{layer.slope:+.2f}" if math.isfinite(layer.slope) else "unknown"
        cells = [f"{value:.3g}" for value in layer.change]
        last = Text(slope, style="red" if is_bad else "green")
        table.add_row(printable(layer.name), *cells, last)
    style = "bold green" if check.is_stable else "bold red"
    verdict = "stable" if check.is_stable else "not stable"
    return Group(table, Text(), Text(f"{verdict}: {printable(check.advice)}", style=style))


def coordinate_check(
    make: Callable[[int], Mapping[str, Any]], widths: Sequence[int]
) -> CoordinateCheck:
    """Train a model of each width for a few steps and compare what changes in its layers.

    `make` takes a width and returns the arguments of `trimtab.check` as a dict: model, optimizer,
    loader and, if the model does not return it, loss.
    """
    chosen = sorted(set(widths))
    if len(chosen) < 2 or chosen[0] < 1:
        raise ConfigError(f"two or more widths are needed, got {list(widths)}")
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for width in chosen:
        torch.manual_seed(0)  # repeatable, whatever was drawn before
        found[width] = _coordinates(Inputs(**as_setup(call_setup(make, width))))
    names = [name for name in found[chosen[0]] if all(name in found[w] for w in chosen)]
    if not names:
        raise ConfigError("the models of these widths have no layer in common")
    layers = [_layer(name, chosen, [found[width][name] for width in chosen]) for name in names]
    return CoordinateCheck(widths=tuple(chosen), layers=tuple(layers))


def parse_widths(text: str) -> list[int]:
    """Return the widths of "64,128,256"; raises ConfigError if that is not what it is."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"widths must be whole numbers such as 64,128,256, got {text!r}"
        ) from None


def _coordinates(inputs: Inputs) -> dict[str, tuple[float, float]]:
    """Return for each layer its size at init and the size of its change, of one batch."""
    kept = KeptState(inputs)
    try:
        batch = cut(draw(inputs.loader)[0], ROWS, ELEMENTS)
        rates = [[float(g["lr"]) for g in o.param_groups] for o in inputs.optimizers]
        before = _outputs(inputs, batch)
        for _ in range(COORDINATE_STEPS):
            run_steps(inputs, [batch], rates, 1)
        after = _outputs(inputs, batch)
    finally:
        kept.restore()
    return {name: (rms(old), rms(after[name] - old)) for name, old in before.items()}


def _outputs(inputs: Inputs, batch: Any) -> Mapping[str, torch.Tensor]:
    inputs.model.eval()  # dropout would differ between the two passes that are compared
    trace = Trace(inputs.model, keeps_outputs=True)
    with torch.no_grad(), trace:
        inputs.loss(inputs.model, clone(batch))
    outputs = dict(trace.outputs)
    if trace.losses:
        outputs[LOGITS] = main_loss(trace).logits.float()
    return outputs


def _layer(
    name: str, widths: Sequence[int], sizes: Sequence[tuple[float, float]]
) -> LayerCoordinates:
    at_init, change = zip(*sizes, strict=True)
    slope = math.nan
    if all(math.isfinite(size) and size > 0 for size in change):
        slope = float(np.polyfit(np.log(widths), np.log(change), 1)[0])
    return LayerCoordinates(name=name, at_init=at_init, change=change, slope=slope)


def _size(slope: float) -> float:
    return abs(slope) if math.isfinite(slope) else math.inf
