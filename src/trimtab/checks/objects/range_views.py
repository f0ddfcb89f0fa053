"""The results of the coordinate check and of the range test for a terminal."""

import math

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.checks.number_text import number
from trimtab.checks.objects.lr_range import LrRange
from trimtab.checks.objects.mup import MAX_SLOPE, CoordinateCheck
from trimtab.core.block import Column
from trimtab.report.escaping import printable
from trimtab.report.sparkline import sparkline


def coordinates_view(check: CoordinateCheck) -> RenderableType:
    """One row per layer: what the steps changed at each width."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(f"change after {check.steps} steps")
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


def range_view(found: LrRange) -> RenderableType:
    """The losses as a curve, and which rate to begin with."""
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
