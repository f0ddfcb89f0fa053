"""Every false episode of ours, with a picture and the reason somebody found for it."""

import tomllib
from pathlib import Path

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.detect.measure import Result
from benchmarks.results import table
from trimtab.core.block import FloatArray
from trimtab.core.signals import LOSS

REASONS = Path(__file__).parent / "reasons.toml"
"""`"run@step" = "reason"`, written by hand after a look at the run."""
LISTED = 60
BEFORE, AFTER = 40, 16
BARS = "▁▂▃▄▅▆▇█"


def false_episodes(result: Result) -> str:
    """A table of the false episodes on healthy runs."""
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    rows = [
        (
            result.split,
            item.run.name,
            _steps(item.run, first, last),
            f"`{picture(item.run, first)}`",
            reasons.get(f"{item.run.name}@{int(item.run.block.step[first])}", "not looked at"),
        )
        for item in result.healthy
        for first, last in item.score.false
    ]
    if not rows:
        return f"None on the healthy runs of {result.split}."
    text = table(
        ("split", "run", "steps", "loss around it; ! is the alarm", "reason"), rows[:LISTED]
    )
    more = len(rows) - LISTED
    return f"{text}\n\nand {more:,} more." if more > 0 else text


def picture(run: RealRun, row: int) -> str:
    """The loss around a row as one line of bars."""
    loss = run.block.column(LOSS).values
    before, after = loss[max(row - BEFORE, 0) : row], loss[row : row + AFTER]
    shown = np.concatenate((before, after))
    finite = shown[np.isfinite(shown)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    return _bars(before, low, high) + "!" + _bars(after, low, high)


def _bars(values: FloatArray, low: float, high: float) -> str:
    height = (high - low) or 1.0
    return "".join(
        BARS[int((len(BARS) - 1) * (value - low) / height)] if np.isfinite(value) else "x"
        for value in values.tolist()
    )


def _steps(run: RealRun, first: int, last: int) -> str:
    begin, end = int(run.block.step[first]), int(run.block.step[last])
    return f"{begin:,}" if begin == end else f"{begin:,} to {end:,}"
