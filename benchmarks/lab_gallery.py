"""The gallery of loss patterns: one small picture per fault (`scripts/bench lab_gallery SUITE`).

Needs matplotlib (the dependency group `bench`). Writes docs/patterns.svg, which docs/lab.md
explains.
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")
import matplotlib.pyplot as plt

from benchmarks.twins import Pair
from trimtab.core import signals
from trimtab.lab.scenarios.catalogue import FAULTS, HARMLESS, KINDS, NATURAL
from trimtab.lab.scenarios.suite import INDEX

_PICTURE = Path(__file__).parent.parent / "docs" / "patterns.svg"
_COLUMNS = 6
_BEFORE, _AFTER = 80, 170
_CLEAN, _RUN, _NORM, _MARK = "#9aa0a6", "#1a73e8", "#f29900", "#d93025"
_PREFERRED = ("severe", 4)
"""The grade and seed to show if the suite has them: a clipped, held-out run."""


def main() -> None:
    """Draw every kind of a suite."""
    suite = Path(sys.argv[1])
    chosen = {kind: _choose(suite, kind) for kind in KINDS}
    shown = {kind: path for kind, path in chosen.items() if path is not None}
    mpl.rcParams.update({"font.size": 7, "svg.hashsalt": "patterns", "axes.linewidth": 0.4})
    mpl.rcParams["path.simplify_threshold"] = 1.0  # half the size, without a visible difference
    rows = -(-len(shown) // _COLUMNS)
    figure, axes = plt.subplots(rows, _COLUMNS, figsize=(13, 1.9 * rows), layout="constrained")
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, (kind, path) in zip(axes.flat, shown.items(), strict=False):
        _draw(axis, kind, path)
    figure.savefig(_PICTURE, metadata={"Date": None})
    print(f"{len(shown)} patterns in {_PICTURE}")


def _choose(suite: Path, kind: str) -> Path | None:
    """The run to show for a kind; None if the suite has none."""
    names = json.loads((suite / INDEX).read_text(encoding="utf-8"))["runs"]
    grade, seed = _PREFERRED
    mine = [name for name in names if name.startswith(f"{kind}-")]
    wanted = f"{kind}-{grade}-seed{seed}"
    name = wanted if wanted in mine else next(iter(sorted(mine, reverse=True)), None)
    return None if name is None else suite / name


def _draw(axis: Any, kind: str, path: Path) -> None:
    pair = Pair.load(path)
    run, twin = pair.values(signals.LOSS)
    norm, _ = pair.values(signals.GRAD_NORM)
    first = max(pair.onset - _BEFORE, 0)
    window = slice(first, pair.onset + _AFTER if pair.onset else len(run))
    steps = np.arange(len(run))[window]
    axis.plot(steps, twin[window], color=_CLEAN, linewidth=0.6)
    axis.plot(steps, run[window], color=_RUN, linewidth=0.7)
    broken = ~np.isfinite(run[window])
    if broken.any():
        axis.plot(steps[broken], np.full(broken.sum(), np.nanmax(twin[window])), "x", ms=2, c=_MARK)
    axis.axvline(pair.onset, color=_MARK, linewidth=0.5, linestyle=":")
    beside = axis.twinx()
    with np.errstate(divide="ignore", invalid="ignore"):
        beside.plot(steps, np.log10(norm[window]), color=_NORM, linewidth=0.4, alpha=0.7)
    beside.set_yticks([])
    group = "" if kind in FAULTS else " (natural)" if kind in NATURAL else " (no fault)"
    assert kind in {**FAULTS, **NATURAL, **HARMLESS}
    name = kind.removeprefix("natural-")
    title = textwrap.fill(f"{name}{group}: {KINDS[kind].title}", 38)
    axis.set_title(title, fontsize=6, loc="left")
    axis.tick_params(length=1.5, width=0.4, labelsize=5)


if __name__ == "__main__":
    main()
