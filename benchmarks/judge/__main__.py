"""Measures the judge: healthy runs of many kinds, planted faults, drawn and published incidents.

scripts/bench judge generate      train what is not in the cache; takes hours
scripts/bench judge tune          the half that rules may be chosen with; printed
scripts/bench judge report        both halves; published. Each look at this half is counted
"""

import argparse
from collections import defaultdict
from pathlib import Path

from benchmarks.judge.drawn import Drawn, bad_starts, playbook
from benchmarks.judge.measure import (
    Healthy,
    judge,
    judge_drawn,
    measure_faults,
    measure_healthy,
    stories,
)
from benchmarks.judge.worlds import cache_folder, fault_worlds, generate, healthy_worlds
from benchmarks.results import publish, table

COMMAND = "scripts/bench judge report"
SEEDS = 5
SEVERE = ("NaN batch", "LR x30", "flipped weight", "dead gradient")
"""Faults that leave the weights worse, or the run without learning."""


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="scripts/bench judge")
    parser.add_argument("what", choices=("generate", "tune", "report"))
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of the records")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each kind")
    arguments = parser.parse_args()
    if arguments.what == "generate":
        generate(arguments.seeds, arguments.cache)
        return
    halves = ("tune",) if arguments.what == "tune" else ("tune", "report")
    sections = {
        "Judge: healthy runs of many kinds": healthy_section(arguments.cache, halves),
        "Judge: faults in many kinds of runs": fault_section(arguments.cache, halves),
        "Judge: the playbook's incidents, bad starts, published incidents": drawn_section(),
    }
    for title, body in sections.items():
        if arguments.what == "report":
            publish(title, COMMAND, body)
        else:
            print(f"## {title}\n\n{body}\n")


def healthy_section(folder: Path, halves: tuple[str, ...]) -> str:
    """Incidents in healthy runs, by half and by rule set."""
    rows, worst = [], []
    for rules in ("trimtab", "textbook"):
        for half in halves:
            found = measure_healthy(healthy_worlds(SEEDS), folder, half, rules)
            name, rate = found.worst
            rows.append(
                (
                    rules,
                    half,
                    len(found.by_kind),
                    f"{found.steps:,}",
                    found.incidents,
                    f"{found.rate:.2f}",
                    f"{rate:.1f} ({name})",
                    found.acts,
                )
            )
            if rules == "trimtab":
                worst += _kind_rows(found, half)
    header = ("rules", "half", "kinds", "steps", "incidents", "in 10,000", "worst kind", "acts")
    return (
        "Small healthy runs of many kinds (classifiers, regression, GANs, diffusion, policies, "
        "sequences), as `observe` records them. Halves by a hash of the kind's name: rules were "
        "chosen with `tune`. `acts`: incidents with an advice other than to wait. Bars: 1 in "
        "10,000 steps, 5 in the worst kind, 0 acts.\n\n"
        + table(header, rows)
        + "\n\nKinds with an incident:\n\n"
        + table(("kind", "half", "steps", "incidents", "acts"), worst)
    )


def _kind_rows(found: Healthy, half: str) -> list[tuple[object, ...]]:
    return [
        (kind, half, steps, count, acts)
        for kind, (steps, count, acts) in sorted(found.by_kind.items())
        if count
    ]


def fault_section(folder: Path, halves: tuple[str, ...]) -> str:
    """Faults that were found, by half."""
    rows: list[tuple[object, ...]] = []
    severe: dict[str, list[bool]] = {}
    for half in halves:
        for fault, found in measure_faults(fault_worlds(), folder, half).items():
            rows.append((half, fault, f"{sum(found)} of {len(found)}"))
            if fault in SEVERE:
                severe[half] = [*severe.get(half, []), *found]
    rows += [
        (half, "severe: " + ", ".join(SEVERE), f"{sum(found)} of {len(found)}")
        for half, found in severe.items()
    ]
    return (
        "Faults planted in every fourth of these kinds: found if an incident begins there, or one "
        "that is open worsens. Adam does not notice a loss x8, and a few bad rows pass. Bar: 95 % "
        "of the severe ones.\n\n" + table(("half", "fault", "found"), rows)
    )


def drawn_section() -> str:
    """The playbook's incidents, bad starts and published incidents."""
    rows = [*_drawn_rows(list(playbook())), *_drawn_rows(list(bad_starts()), "bad starts")]
    told = stories()
    found = sum(bool(judge(block)) for _, block in told)
    return (
        "Drawn with noise to the numbers of the playbook; right: class and advice as it says.\n\n"
        + table(("incident", "found", "right", "of"), rows)
        + "\n\nPublished incidents with a real series (tune half): an incident is found in "
        f"{found} of {len(told)}; five of the others have under 16 records."
    )


def _drawn_rows(drawn: list[Drawn], title: str = "") -> list[tuple[object, ...]]:
    by_kind: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for one in drawn:
        by_kind[title or one.kind].append(judge_drawn(one)[:2])
    return [
        (kind, sum(found for found, _ in said), sum(right for _, right in said), len(said))
        for kind, said in by_kind.items()
    ]


if __name__ == "__main__":
    main()
