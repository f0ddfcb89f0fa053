"""The final losses of all arms against the clean twin, as SVG beside the docs."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recover.arms import Arm
from benchmarks.recover.cases import Case
from benchmarks.recover.figures import Outcomes, difference

PICTURE = Path(__file__).parents[2] / "docs" / "recover.svg"

_ARMS = (Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND, Arm.RECOVER)
_COLOURS = ("#b0b0b0", "#7a9cc6", "#d9a441", "#2a7f3f")


def draw(outcomes: Outcomes, cases: Sequence[Case], seeds: Sequence[int]) -> None:
    """Draw one row of points for each fault; runs that were lost are at the right edge."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "trimtab"
    shown = [case for case in cases if difference(outcomes, case, Arm.RECOVER, seeds)]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(shown) + 1.2))
    for row, case in enumerate(reversed(shown)):
        for arm, colour in zip(_ARMS, _COLOURS, strict=True):
            values = difference(outcomes, case, arm, seeds)
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                mean = statistics.fmean(finite)
                axes.plot(mean, row, "o", color=colour, ms=7 if arm is Arm.RECOVER else 5)
            if len(finite) < len(values):
                axes.plot(4.0, row, "x", color=colour, ms=7)
    axes.set_yticks(range(len(shown)), [case.name for case in reversed(shown)])
    axes.set_xscale("symlog", linthresh=0.02)
    axes.set_xlim(-0.5, 5)
    axes.axvline(0, color="black", lw=0.6)
    axes.axvline(0.02, color="black", lw=0.6, ls=":")
    axes.set_xlabel("final held-out loss minus that of the clean twin, nats (x: lost or stopped)")
    for arm, colour in zip(_ARMS, _COLOURS, strict=True):
        axes.plot([], [], "o", color=colour, label=arm.value)
    axes.legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)
