"""A run compared with its clean twin: what moved first, how far, and whether it recovered.

Up to the onset the two are bit-identical, so the fault causes every difference. Differences are
measured in units of the twin's noise from step to step. Clocks are never the same twice, so they
are compared with the same run before the onset.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, FloatArray
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.scenarios.suite import read_truth

_BEFORE = 100
"""Steps before the onset that the noise is estimated from."""

_WITHIN = 100
"""Steps after the onset that count: later changes are not attributed to the fault."""

_SIGMAS = 5.0
_CLOCK_RATIO = 4.0
"""A clock has moved when it is this many times its median. The slowest of 600 steps on a busy
machine with two cores was 3 times the median."""

_MIN_SHARE = 1e-3
"""A difference below a thousandth of the value is ignored, however small the noise is."""

_RECOVERED = 0.05
"""Nats between a run and its twin, as a mean of 10 steps, below which it has recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A signal that left its twin."""

    signal: str
    step: int
    sigmas: float
    """The difference at that step; inf if the value is not finite."""


class Pair:
    """A run and its clean twin, step by step."""

    def __init__(self, run: Block, twin: Block, onset: int) -> None:
        self.onset = onset
        self._run = run
        self._twin = twin
        self._rows = min(len(run), len(twin))

    @classmethod
    def load(cls, run_dir: Path) -> "Pair":
        """Read a trial of a suite and its twin in the same suite."""
        truth = read_truth(run_dir)
        run, twin = (
            read_journal(RunDirectory(folder)).block
            for folder in (run_dir, run_dir.parent / truth["twin"])
        )
        return cls(run, twin, truth["onset"])

    def values(self, signal: str) -> tuple[FloatArray, FloatArray]:
        """A signal of the run and of the twin; NaN where it was not recorded."""
        run, twin = (block.column(signal) for block in (self._run, self._twin))
        return (
            np.where(run.present, run.values, np.nan)[: self._rows],
            np.where(twin.present, twin.values, np.nan)[: self._rows],
        )

    def moves(self) -> list[Move]:
        """Every signal that left the twin soon after the onset, in order of time."""
        names = self._run.columns.keys() & self._twin.columns.keys()
        found = [self._move(name) for name in sorted(names - {signals.CLOCK})]
        return sorted((m for m in found if m), key=lambda move: (move.step, -move.sigmas))

    def loss_difference(self) -> FloatArray:
        """Loss of the run minus that of its twin, at each step."""
        run, twin = self.values(signals.LOSS)
        return run - twin

    def peak_ratio(self, signal: str, *, downwards: bool = False) -> float:
        """The largest (or smallest) value after the onset divided by the median before it.

        If the onset is the first step, the median is that of the twin.
        """
        run, twin = self.values(signal)
        before = (run if self.onset else twin)[max(self.onset - _BEFORE, 0) : self.onset or _WITHIN]
        after = run[self.onset : self.onset + _WITHIN]
        if not np.isfinite(before).any() or not len(after):
            return math.nan
        if not np.isfinite(after).all() and self._is_broken(signal):
            return math.inf
        peak = np.nanmin(after) if downwards else np.nanmax(after)
        return float(peak / np.nanmedian(before))

    def steps_to_recover(self) -> int | None:
        """Steps from the onset until the loss returned to the twin's for good; None: never."""
        apart = self.loss_difference()[self.onset :]
        if len(apart) < 10:
            return None
        means = np.convolve(apart, np.full(10, 0.1), mode="valid")
        away = np.flatnonzero(~(means < _RECOVERED))
        if not len(away):
            return 0
        return None if away[-1] == len(means) - 1 else int(away[-1]) + 10

    def final_difference(self) -> float:
        """Mean difference in loss over the last 50 steps."""
        return float(self.loss_difference()[-50:].mean())

    def _move(self, signal: str) -> Move | None:
        run, twin = self.values(signal)
        window = slice(self.onset, self.onset + _WITHIN)
        before = slice(max(self.onset - _BEFORE, 0), self.onset)
        if signal in signals.CLOCKS:
            usual = run[before] if self.onset else twin
            ratio = _ratio(run[window], float(np.nanmedian(usual)) if len(usual) else math.nan)
            return self._first(signal, ratio, _CLOCK_RATIO)
        usual = twin[before] if self.onset else twin[window]
        known = usual[np.isfinite(usual)]
        if len(known) < 2:
            return None
        steps = np.diff(known)
        noise = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
        noise = max(noise, _MIN_SHARE * float(np.median(np.abs(known))) / _SIGMAS, 1e-300)
        apart = np.abs(run[window] - twin[window]) / noise
        apart[~np.isfinite(run[window]) & np.isfinite(twin[window])] = math.inf
        return self._first(signal, np.nan_to_num(apart, nan=0.0, posinf=math.inf), _SIGMAS)

    def _first(self, signal: str, apart: FloatArray, limit: float) -> Move | None:
        over = np.flatnonzero(apart > limit)
        if not len(over):
            return None
        row = int(over[0])
        return Move(signal=signal, step=self.onset + row, sigmas=float(apart[row]))

    def _is_broken(self, signal: str) -> bool:
        """Whether a recorded value is NaN or infinite, as opposed to not recorded."""
        column = self._run.column(signal)
        return bool(column.nonfinite[self.onset : self.onset + _WITHIN].any())


def _ratio(values: FloatArray, usual: float) -> FloatArray:
    """The ratio to the usual value, upwards or downwards."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = values / usual
        return np.nan_to_num(np.maximum(ratio, 1 / ratio), nan=0.0, posinf=0.0)
