"""The effect of each fault: the suite's runs against their twins (`scripts/bench lab_suite`).

scripts/bench lab_suite SUITE    reads a suite that `trimtab lab suite SUITE` has built
"""

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import publish, table
from benchmarks.twins import Pair
from trimtab.core import signals
from trimtab.core.signals import CLOCKS
from trimtab.lab.scenarios.catalogue import FAULTS, HARMLESS, KINDS, NATURAL
from trimtab.lab.scenarios.suite import INDEX, read_truth

_RATIOS = (
    (signals.LOSS, False),
    (signals.GRAD_NORM, False),
    (signals.UPDATE_NORM, False),
    (signals.ADAM_V_NORM, False),
    (signals.LOSS_SCALE, True),
    (signals.TOKENS_PER_SECOND, True),
)
_HEADER = [
    "kind",
    "grade",
    "moves first (runs)",
    "after",
    "loss",
    "grad norm",
    "update norm",
    "v norm",
    "loss scale",
    "tokens/s",
    "recovered",
    "steps to recover",
    "final loss",
]


def main() -> None:
    """Measure and publish."""
    suite = Path(sys.argv[1])
    names = json.loads((suite / INDEX).read_text(encoding="utf-8"))["runs"]
    trials = [(suite / name, read_truth(suite / name)) for name, twin in names.items() if twin]
    pairs = {path: Pair.load(path) for path, _ in trials}
    rows = []
    for kind in KINDS:
        for grade in ("mild", "severe"):
            chosen = [pairs[p] for p, t in trials if (t["kind"], t["grade"]) == (kind, grade)]
            if chosen:
                rows.append([kind, grade, *_row(kind, chosen)])
    counts = Counter("fault" if truth["is_fault"] else "none" for _, truth in trials)
    size = sum(path.stat().st_size for path in suite.rglob("*") if path.is_file())
    body = (
        f"{len(names)} runs ({counts['fault']} with a fault, {counts['none']} hard negatives, "
        f"{len(names) - len(trials)} clean), {size / 2**20:.0f} MB.\n\n"
        "Each run against its clean twin. Ratios are the peak (for loss scale and tokens/s the "
        "lowest value) within 100 steps of the onset over the median of the 100 steps before it; "
        "for faults from the first step on, over the twin. `moves first` has the signal that first "
        "differed from the twin by more than 5 sigma of the twin's noise, the number of runs in "
        "which it was first, and the median number of steps after the onset. Recovered: the loss "
        "returned to within 0.05 nat of the twin's and stayed there. Final loss: over the last 50 "
        "steps, minus the twin's. Medians over the seeds; x0.5 of tokens/s is noise of the "
        "machine.\n\n" + table(_HEADER, rows)
    )
    publish("Lab faults", "scripts/bench lab_suite SUITE", body)


def _row(kind: str, pairs: Sequence[Pair]) -> list[str]:
    firsts: Counter[str] = Counter()
    delays = []
    for pair in pairs:
        moves = [move for move in pair.moves() if _counts(kind, move.signal)]
        if moves:
            firsts[moves[0].signal] += 1
            delays.append(moves[0].step - pair.onset)
    first = ", ".join(f"{name} ({n})" for name, n in firsts.most_common(2)) or "nothing"
    recoveries = [pair.steps_to_recover() for pair in pairs]
    recovered = [steps for steps in recoveries if steps is not None]
    final = [pair.final_difference() for pair in pairs]
    return [
        first,
        _median(delays, "{:.0f}"),
        *(
            _median([pair.peak_ratio(name, downwards=down) for pair in pairs], "x{:.3g}")
            for name, down in _RATIOS
        ),
        f"{len(recovered)}/{len(pairs)}",
        _median(recovered, "{:.0f}"),
        _median(final, "{:+.3f}"),
    ]


def _counts(kind: str, signal: str) -> bool:
    """Whether a signal can indicate a fault; clocks only indicate faults that take time."""
    return signal not in CLOCKS or kind in ("F16", "F17", "evaluation", "right-resume")


def _median(values: Sequence[float], form: str) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "NaN" if values and form.startswith("{:+") else ""
    if math.isinf(middle := statistics.median(known)):
        return "inf"
    return form.format(middle)


if __name__ == "__main__":
    assert set(KINDS) == {*FAULTS, *NATURAL, *HARMLESS}
    main()
