"""Peers that run by their own code: is it installed, and does our fast form say the same?"""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.detect.contenders import Alarms, Contender, Fork
from trimtab.core.block import Block, Column
from trimtab.core.signals import GRAD_NORM, LOSS

CHECK_ROWS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A peer whose package is not installed: a row without figures."""

    name: str
    source: str = "not installed"

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        """There is nothing to watch with."""
        raise RuntimeError(f"{self.name} is not installed; install the dependency group 'peers'")


def installed(distribution: str) -> str | None:
    """A package with its version, or None."""
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def checked_source(fast: Contender, package: Contender) -> str:
    """How a fast form of a slow package is named, once it has said the same of a hard series."""
    block = hard_series()
    ours, theirs = fast.watch(block).run, package.watch(block).run
    if (ours != theirs).any():
        row = int(np.flatnonzero(ours != theirs)[0])
        raise RuntimeError(f"{fast.name}: our form and {package.source} differ at row {row}")
    return f"{package.source}; fast form, equal on {len(block):,} points ({int(ours.sum())} alarms)"


def hard_series(rows: int = CHECK_ROWS) -> Block:
    """A series with outliers of every size, one level shift and one NaN."""
    draw = np.random.default_rng(1)

    def signal() -> Column:
        values = 2 + 0.1 * draw.standard_normal(rows)
        values[rows // 2 :] += 1
        outliers = draw.choice(rows, rows // 30, replace=False)
        values[outliers] *= draw.uniform(1.1, 8, len(outliers))
        values[rows - rows // 4] = np.nan
        return Column.complete(values)

    return Block.from_columns({LOSS: signal(), GRAD_NORM: signal()}, step=np.arange(rows))
