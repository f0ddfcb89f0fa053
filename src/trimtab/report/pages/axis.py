"""The vertical axis of a chart: logarithmic where that helps, and a range that shows the shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray

LOG_RATIO = 20.0
"""Over this ratio of the largest or smallest value to the median the axis is logarithmic. Source:
the same limit as in the terminal's curves."""

HEAD_SHARE, MIN_VALUES = 0.1, 20
"""The first tenth of a long enough run does not set the range: the loss of an untrained model would
flatten the rest."""

SPREADS = 30.0
"""A peak beyond this many spreads of most values leaves the chart at its edge, where it is marked;
with more, the rest of the curve would be flatter than 4 of its 130 pixels."""


_HUGE = 1e28
"""No axis is longer: uPlot has no ticks beyond 1e32. Larger values leave the chart at its edge."""

SAMPLE = 50_000
"""Values that stand for all of a long run where only their usual size is needed."""


def percentiles(values: FloatArray, shares: Sequence[float]) -> list[float]:
    """Percentiles of evenly spaced values; those of enormous numbers may be infinite."""
    sample = values[:: -(-len(values) // SAMPLE) or 1]
    with np.errstate(over="ignore", invalid="ignore"):
        return [float(value) for value in np.percentile(sample, shares)]


def choose_axis(values: FloatArray) -> dict[str, Any]:
    """`log` and `range` of a chart for its finite values, in the order of steps."""
    if not len(values):
        return {"log": False, "range": None}
    body = values[int(HEAD_SHARE * len(values)) :] if len(values) >= MIN_VALUES else values
    first, middle, last = percentiles(body, (1, 50, 99))
    low, high = float(body.min()), float(body.max())
    if low > 0 and (high > LOG_RATIO * middle or middle > LOG_RATIO * low):
        return {"log": True, "range": _short(low, high)}
    spread = last - first
    if spread > 0:
        high = min(high, last + SPREADS * spread)
        low = max(low, first - SPREADS * spread)
    if low == high:
        pad = abs(low) / 2 or 1.0
        low, high = low - pad, high + pad
    return {"log": False, "range": _short(low, high)}


def shared_axis(lines: Sequence[FloatArray]) -> dict[str, Any]:
    """The axis of a chart with several lines: each of them is seen."""
    axes = [choose_axis(values) for values in lines if len(values)]
    if len(axes) < 2:
        return axes[0] if axes else choose_axis(np.empty(0))
    low = min(axis["range"][0] for axis in axes)
    high = max(axis["range"][1] for axis in axes)
    least = min(float(values.min()) for values in lines if len(values))
    is_wide = low > 0 and high > LOG_RATIO * low
    is_log = least > 0 and (is_wide or any(axis["log"] for axis in axes))
    return {"log": is_log, "range": _short(max(low, least) if is_log else low, high)}


def _short(low: float, high: float) -> list[float]:
    return [float(f"{min(max(edge, -_HUGE), _HUGE):.6g}") for edge in (low, high)]
