"""False alarms in the quiet parts of eventful runs.

scripts/bench quiet_parts

The scoreboard counts false alarms on healthy runs. A run that has had a spike is noisier than one
that never had; here its records outside every labelled event are counted, for each rule set.
"""

import numpy as np
from tests.kit.public_runs import SPLITS, RealRun, real_runs

from benchmarks.detect.measure import nonfinite_counts, rate_of
from benchmarks.detect.ours import our_contenders
from benchmarks.results import publish, table
from benchmarks.scoring import excused, score


def main() -> None:
    """Count, and publish one row per split and rule set."""
    eventful = [run for run in real_runs() if run.label != "healthy"]
    contenders = our_contenders()
    rows = []
    for split in SPLITS:
        runs = [run for run in eventful if run.split == split]
        points = sum(num_quiet(run) for run in runs)
        for contender in contenders:
            count = 0
            for run in runs:
                alarms = nonfinite_counts(run.block, contender.watch(run.block))
                count += score(run, np.flatnonzero(alarms).tolist()).num_false
            rows.append((split, contender.name, len(runs), f"{points:,}", rate_of(count, points)))
    header = ("split", "detector", "runs", "points", "false episodes: count; per 10,000 [95 %]")
    body = (
        "Public runs with at least one labelled event; only points outside every event and restart "
        "are counted.\n\n" + table(header, rows)
    )
    (_, _, _, _, ours), (_, _, _, _, textbook) = rows[-2:]
    what = "quiet parts of eventful runs, held-out: false episodes; in 10,000 points"
    title, command = "Detection: quiet parts of eventful runs", "scripts/bench quiet_parts"
    publish(title, command, body, [(what, ours, "-", f"textbook {textbook}")])


def num_quiet(run: RealRun) -> int:
    """Records of a public run outside every labelled event and restart."""
    quiet = np.ones(len(run.block), dtype=np.bool_)
    for first, last in excused(run):
        quiet[max(first, 0) : last + 1] = False
    return int(quiet.sum())


if __name__ == "__main__":
    main()
