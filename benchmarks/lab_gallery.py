"""The gallery of loss patterns: one small chart per fault (`scripts/bench lab_gallery SUITE`).

Writes docs/patterns.svg, which docs/lab.md explains.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.small_charts import HEIGHT, across, draw_grid, line
from trimtab.core import signals
from trimtab.core.block import FloatArray
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.scenarios.catalogue import FAULTS, KINDS, NATURAL
from trimtab.lab.scenarios.suite import INDEX, read_truth

_PICTURE = Path(__file__).parent.parent / "docs" / "patterns.svg"
_BEFORE, _AFTER = 80, 170
_PREFERRED = ("severe", 4)
"""The grade and seed to show if the suite has them: a clipped, held-out run."""

Points = Sequence[tuple[float, float]]


def main() -> None:
    """Draw every kind of a suite."""
    suite = Path(sys.argv[1])
    chosen = {kind: _choose(suite, kind) for kind in KINDS}
    shown = {kind: path for kind, path in chosen.items() if path is not None}
    charts = [_chart(path) for path in shown.values()]
    _PICTURE.write_text(draw_grid([title_of(kind) for kind in shown], charts), encoding="utf-8")
    print(f"{len(shown)} patterns in {_PICTURE}")


def title_of(kind: str) -> str:
    group = "" if kind in FAULTS else " (natural)" if kind in NATURAL else " (no fault)"
    return f"{kind.removeprefix('natural-')}{group}: {KINDS[kind].title}"


def draw(run: Points, twin: Points, norm: Points, broken: Sequence[float], onset: float) -> str:
    """Return a chart of lines from 0 to 1, with the onset and the places that are not finite."""
    marks = "".join(f"M{across(x):.1f} 1v7" for x in broken)
    red = f'<path class="x" d="{marks}M{across(onset):.1f} 1V{HEIGHT - 1}"/>'
    return line("n", norm) + line("t", twin) + line("l", run) + red


def _choose(suite: Path, kind: str) -> Path | None:
    """The run to show for a kind; None if the suite has none."""
    names = json.loads((suite / INDEX).read_text(encoding="utf-8"))["runs"]
    grade, seed = _PREFERRED
    mine = [name for name in names if name.startswith(f"{kind}-")]
    wanted = f"{kind}-{grade}-seed{seed}"
    name = wanted if wanted in mine else next(iter(sorted(mine, reverse=True)), None)
    return None if name is None else suite / name


def _chart(path: Path) -> str:
    truth = read_truth(path)
    onset = truth["onset"]
    run, norm = _recorded(path, signals.LOSS), _recorded(path, signals.GRAD_NORM)
    twin = _recorded(path.parent / truth["twin"], signals.LOSS)
    first = max(onset - _BEFORE, 0)
    window = slice(first, onset + _AFTER if onset else len(run))
    run, twin, norm = run[window], twin[window], norm[window]
    with np.errstate(divide="ignore", invalid="ignore"):
        norm = np.log10(norm)
    count = max(len(run) - 1, 1)
    both = np.concatenate([run, twin])
    broken = (np.flatnonzero(~np.isfinite(run)) / count).tolist()
    lines = (_points(run, both), _points(twin, both), _points(norm, norm))
    return draw(*lines, broken, (onset - first) / count)


def _recorded(run_dir: Path, signal: str) -> FloatArray:
    """Return a signal of a run; NaN where it was not recorded."""
    column = read_journal(RunDirectory(run_dir)).block.column(signal)
    return np.where(column.present, column.values, np.nan)


def _points(values: FloatArray, scale: FloatArray) -> Points:
    """Return the finite values on a scale from 0 to 1."""
    finite = scale[np.isfinite(scale)]
    if not len(finite):
        return []
    low, high = float(finite.min()), float(finite.max())
    count = max(len(values) - 1, 1)
    rows = np.flatnonzero(np.isfinite(values))
    return [(row / count, (values[row] - low) / ((high - low) or 1.0)) for row in rows.tolist()]


if __name__ == "__main__":
    main()
