"""Peers whose package may be installed: does our fast form say the same as its own code?"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.detect.contenders import ArrayRule, Contender, Stepwise, Watcher
from trimtab.core.block import Block, Column
from trimtab.core.signals import GRAD_NORM, LOSS

CHECK_ROWS = 3000


def checked(
    fast: ArrayRule | Stepwise, distribution: str, own_code: Callable[[], Watcher]
) -> Contender:
    """Return the fast form of a package's rule, once both have said the same of a hard series.

    Where the package is not installed, nothing is compared.
    """
    try:
        package = f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return fast
    block = hard_series()
    ours = fast.watch(block).run
    theirs = Stepwise(name=fast.name, start=own_code).watch(block).run
    if (ours != theirs).any():
        row = int(np.flatnonzero(ours != theirs)[0])
        raise RuntimeError(f"{fast.name}: our form and {package} differ at row {row}")
    alarms = int(ours.sum())
    source = f"{package}; fast form, equal on {len(block):,} points ({alarms} alarms)"
    return replace(fast, source=source)


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
