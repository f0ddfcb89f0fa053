"""What judging costs: one record at a time beside a run, and a finished log of a million steps.

Both in process time: other work on the machine disturbs the wall clock.
"""

import dataclasses
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import publish
from trimtab.core.block import Block, Column
from trimtab.core.signals import (
    ADAM_V_NORM,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    PARAM_NORM,
    STEP_SECONDS,
    UPDATE_NORM,
)
from trimtab.judge import Judge
from trimtab.readers import read_log

SIGNALS = (LOSS, GRAD_NORM, LR, LOSS_SCALE, PARAM_NORM, UPDATE_NORM, ADAM_V_NORM, STEP_SECONDS)
LIVE_ROWS, WARM_ROWS = 4000, 3000
"""Rows that are timed, after rows that fill every window."""
LOG_ROWS = 1_000_000
TIMES = 7
CLIMB = 0.05
"""By how much a loss rises a step that keeps incidents open: every record alarms or nearly does."""
LIVE_BAR, LOG_BAR = 150, 15
"""Microseconds a step; times polars."""


def plain_run(rows: int) -> Block:
    """A healthy run with eight signals: a falling loss, and noise with a heavy tail."""
    draw = np.random.default_rng(0)
    steps = np.arange(rows)

    def noise(size: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return size * draw.standard_t(5, rows)

    values = {
        LOSS: 3 + 7 / (1 + steps / 500) + noise(0.03),
        GRAD_NORM: 0.3 * np.exp(noise(0.1)),
        LR: 3e-4 * np.cos(steps / rows),
        LOSS_SCALE: np.full(rows, 65536.0),
        PARAM_NORM: 100 + steps * 1e-4,
        UPDATE_NORM: 0.01 * np.exp(noise(0.05)),
        # A mean over a thousand steps: it drifts, and never jumps.
        ADAM_V_NORM: 1e-5 * np.exp(np.cumsum(noise(1e-4))),
        STEP_SECONDS: 0.5 * np.exp(noise(0.02)),
    }
    columns = {name: Column.complete(values[name]) for name in SIGNALS}
    return Block.from_columns(columns, step=steps)


def climbing_run(rows: int, start: int) -> Block:
    """The same run with a loss that climbs from a row on: the worst that can be asked of a step."""
    run = plain_run(rows)
    loss = run.column(LOSS).values + CLIMB * np.maximum(np.arange(rows) - start, 0)
    return dataclasses.replace(run, columns={**run.columns, LOSS: Column.complete(loss)})


def live_microseconds(
    rows: int = LIVE_ROWS, warm: int = WARM_ROWS, *, at_once: int = 1, climbs: bool = False
) -> float:
    """Process time of the judge per step, fed with blocks of `at_once` records."""
    run = climbing_run(warm + rows, warm) if climbs else plain_run(warm + rows)
    judge = Judge()
    judge.update(run[:warm])
    records = list(run[warm:].cut(at_once))
    begin = time.process_time()
    for record in records:
        judge.update(record)
    return 1e6 * (time.process_time() - begin) / rows


def log_seconds(path: Path) -> tuple[float, float]:
    """Process time from a CSV file to its incidents: reading it, judging it."""
    begin = time.process_time()
    block = read_log(path).block
    read = time.process_time()
    judge = Judge()
    judge.update(block)
    judge.finish()
    return read - begin, time.process_time() - read


def polars_seconds(path: Path) -> float:
    """Process time of polars, over all its threads, to read the same file."""
    polars = importlib.import_module("polars")
    return _cpu(lambda: polars.read_csv(path))


def write_log(path: Path, rows: int) -> None:
    """A run as a CSV file, with the digits that a logger writes."""
    run = plain_run(rows)
    names = ",".join(["step", *SIGNALS])
    values = np.column_stack([run.step, *(run.column(name).values for name in SIGNALS)])
    np.savetxt(
        path, values, fmt=["%d"] + ["%.7g"] * len(SIGNALS), delimiter=",", header=names, comments=""
    )


def main() -> None:
    """Measure and publish."""
    live, climbing, fast = (
        statistics.median(live_microseconds(at_once=at_once, climbs=climbs) for _ in range(TIMES))
        for at_once, climbs in ((1, False), (1, True), (100, False))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        write_log(path, LOG_ROWS)
        # In turns: the machine may be faster or slower from one moment to the next.
        rounds = [(polars_seconds(path), *log_seconds(path)) for _ in range(TIMES)]
        yardstick, read, judged = (
            statistics.median(column) for column in zip(*rounds, strict=True)
        )
    body = (
        f"Process time; medians of {TIMES}, in turns. Default rules. While the loss climbs and an "
        f"incident is open, a record takes {climbing:.1f} us. An observer judges what came in "
        f"half a second at once: of a run with short steps, that is a block of many records. "
        f"polars.read_csv of {LOG_ROWS:,} steps x {len(SIGNALS)} signals takes {yardstick:.2f} s; "
        f"trimtab reads the file in {read / yardstick:.1f} times that, and judges it in "
        f"{judged / yardstick:.1f} times that."
    )
    whole = f"{(read + judged) / yardstick:.1f} times polars.read_csv"
    publish(
        "Cost of judging",
        "scripts/bench detect cost",
        body,
        [
            ("judging beside a run, one record of 8 signals", f"{live:.1f} us", f"{LIVE_BAR} us"),
            ("the same, in blocks of 100 records", f"{fast:.1f} us", f"{LIVE_BAR} us"),
            (f"from a CSV of {LOG_ROWS:,} steps to incidents", whole, LOG_BAR),
        ],
    )


def _cpu(action: Callable[[], object]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin
