"""Measures the judge: healthy runs of many kinds, planted faults, drawn and published incidents.

scripts/bench judge generate      train what is not in the cache; takes hours
scripts/bench judge tune          the half that rules may be chosen with; printed
scripts/bench judge report        both halves; published. Each look at this half is counted
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.public_runs import DATA

from benchmarks.causes.stories import read_stories, run_of
from benchmarks.detect.intervals import share_of
from benchmarks.judge.drawn import Drawn, bad_starts, playbook
from benchmarks.judge.worlds import (
    FAULT_AT,
    World,
    fault_worlds,
    generate,
    healthy_worlds,
    is_recorded,
    records_of,
)
from benchmarks.results import Headline, publish, table
from benchmarks.zoo.records import cache_folder
from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.incidents import Incident
from trimtab.judge import Judge

COMMAND = "scripts/bench judge report"
SEEDS = 5
SHORT = 16
"""Records under which hardly anything can be said of a run."""
SEVERE = ("NaN batch", "LR x30", "flipped weight", "dead gradient")
"""Faults that leave the weights worse, or the run without learning."""


FOUND_WITHIN = 250
"""Records after a fault in which its incident must begin."""


@dataclass(frozen=True, slots=True)
class Said:
    """An incident and the advice about it."""

    incident: Incident
    action: ActionKind


def judge(block: Block, rules: str | None = None) -> list[Said]:
    """Judge a run from its first record to its last."""
    ours = Judge(rules=rules)
    ours.update(block)
    ours.finish()
    actions = [ours.explain(incident, block).action for incident in ours.incidents]
    return [
        Said(incident, action.kind if action else ActionKind.WAIT)
        for incident, action in zip(ours.incidents, actions, strict=True)
    ]


@dataclass
class Healthy:
    """What was said of some healthy runs."""

    steps: int = 0
    incidents: int = 0
    acts: int = 0
    """Incidents with an advice other than to wait."""
    by_kind: dict[str, "Healthy"] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Incidents in 10,000 steps."""
        return 1e4 * self.incidents / max(self.steps, 1)

    @property
    def worst(self) -> tuple[str, float]:
        """The kind with the most incidents in 10,000 steps."""
        rates = {kind: part.rate for kind, part in self.by_kind.items()}
        name = max(rates, key=rates.__getitem__, default="")
        return name, rates.get(name, 0.0)

    def add(self, kind: str, block: Block, said: list[Said]) -> None:
        for part in (self, self.by_kind.setdefault(kind, Healthy())):
            part.steps += len(block)
            part.incidents += len(said)
            part.acts += sum(one.action is not ActionKind.WAIT for one in said)


def measure_healthy(worlds: Iterable[World], folder: Path, half: str, rules: str) -> Healthy:
    """Judge the healthy runs of one half that are in the cache."""
    found = Healthy()
    for world in worlds:
        if world.half == half and is_recorded(world, folder):
            block = records_of(world, folder)
            found.add(world.kind, block, judge(block, rules))
    return found


def measure_faults(worlds: Iterable[World], folder: Path, half: str) -> dict[str, list[bool]]:
    """Return, by fault, whether it was found in each run."""
    found: dict[str, list[bool]] = defaultdict(list)
    for world in worlds:
        if world.half == half and is_recorded(world, folder):
            said = judge(records_of(world, folder))
            found[world.fault].append(any(_says_something_new(one.incident) for one in said))
    return found


def _says_something_new(incident: Incident) -> bool:
    """Return whether an incident begins at the fault, or one that is open worsens there."""
    until = FAULT_AT + FOUND_WITHIN
    worsened = any(FAULT_AT <= finding.step <= until for finding in incident.findings)
    return worsened or _is_near(incident, FAULT_AT, before=12, after=FOUND_WITHIN)


def _is_near(incident: Incident, at: int, before: int, after: int) -> bool:
    first = min(incident.onset.step, incident.findings[0].step)
    return at - before <= first <= at + after


def judge_drawn(drawn: Drawn) -> tuple[bool, bool]:
    """Return whether a drawn incident was found, and whether all that is said is right."""
    said = judge(drawn.block)
    if drawn.may_be_silent:
        return bool(said), all(one.incident.incident_class in drawn.classes for one in said)
    after = drawn.within or FOUND_WITHIN
    near = [one for one in said if _is_near(one.incident, drawn.at, before=25, after=after)]
    if not near:
        return False, False
    right = len(said) <= 2
    first = near[0]
    if drawn.classes:
        right &= first.incident.incident_class in drawn.classes
    if drawn.waits is not None:
        right &= (first.action is ActionKind.WAIT) == drawn.waits
    if drawn.symptom:
        right &= drawn.symptom in first.incident.symptoms
    return True, right


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="scripts/bench judge")
    parser.add_argument("what", choices=("generate", "tune", "report"))
    parser.add_argument(
        "--cache", type=Path, default=cache_folder("judge"), help="folder of the records"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each kind")
    arguments = parser.parse_args()
    if arguments.what == "generate":
        generate(arguments.seeds, arguments.cache)
        return
    halves = ("tune",) if arguments.what == "tune" else ("tune", "report")
    sections = {
        "Judge: many kinds of runs": kinds_section(arguments.cache, halves),
        "Judge: drawn and published incidents": drawn_section(),
    }
    for title, (body, headlines) in sections.items():
        if arguments.what == "report":
            publish(title, COMMAND, body, headlines)
        else:
            print(f"## {title}\n\n{body}\n")


def kinds_section(folder: Path, halves: tuple[str, ...]) -> tuple[str, list[Headline]]:
    """Incidents in healthy runs and faults that were found, by half and by rule set."""
    last: dict[str, Healthy] = {}
    rows, noisy = [], []
    for rules in ("trimtab", "textbook"):
        for half in halves:
            found = last[rules] = measure_healthy(healthy_worlds(SEEDS), folder, half, rules)
            worst_kind, rate = found.worst
            kinds, worst = len(found.by_kind), f"{rate:.1f} ({worst_kind})"
            counts = (f"{found.steps:,}", found.incidents, f"{found.rate:.2f}", worst, found.acts)
            rows.append((rules, half, kinds, *counts))
            if rules == "trimtab":
                noisy += [
                    f"{kind} {part.incidents}"
                    for kind, part in found.by_kind.items()
                    if part.incidents
                ]
    header = ("rules", "half", "kinds", "steps", "incidents", "in 10,000", "worst kind", "acts")
    faults, severe = _fault_table(folder, halves)
    text = (
        "Small healthy runs of many kinds (classifiers, regression, GANs, diffusion, policies, "
        "sequences), as `observe` records them, trained once and kept. Halves by a hash of the "
        "kind's name: rules were chosen with `tune`. `acts`: incidents with an advice other than "
        "to wait.\n\n" + table(header, rows) + f"\n\nIncidents by kind: {', '.join(noisy)}.\n\n"
        "Faults planted in every fourth of these kinds: found if an incident begins there, or one "
        "that is open worsens. Adam does not notice a loss x8, and a few bad rows pass. Severe: "
        f"{', '.join(SEVERE)}.\n\n{faults}"
    )
    ours, textbook, half = last["trimtab"], last["textbook"], halves[-1]
    headlines: list[Headline] = [
        (
            f"healthy kinds, {half} half: incidents in 10,000 steps",
            *(f"{ours.rate:.2f}", 1, f"textbook {textbook.rate:.1f}"),
        ),
        ("the same, worst kind", *(f"{ours.worst[1]:.1f}", 5, f"textbook {textbook.worst[1]:.0f}")),
        ("the same, with an advice to act", ours.acts, 0, f"textbook {textbook.acts}"),
        (f"severe faults found, {half} half", severe, "95 %"),
    ]
    return text, headlines


def _fault_table(folder: Path, halves: tuple[str, ...]) -> tuple[str, str]:
    """Faults that were found, a row for each; and the severe ones of the last half."""
    found = {half: measure_faults(fault_worlds(), folder, half) for half in halves}
    rows = [
        (fault, *(f"{sum(found[half][fault])} of {len(found[half][fault])}" for half in halves))
        for fault in found[halves[0]]
    ]
    severe = [one for fault in SEVERE for one in found[halves[-1]].get(fault, [])]
    return table(("fault", *halves), rows), share_of(sum(severe), len(severe))


def drawn_section() -> tuple[str, list[Headline]]:
    """The playbook's incidents, bad starts and published incidents."""
    rows, starts = _drawn_rows(list(playbook())), _drawn_rows(list(bad_starts()), "bad starts")
    folder = DATA / "stories"
    told = [run_of(folder, story).block for story in read_stories(folder, sparse=False)]
    missed = [block for block in told if not judge(block)]
    found, short = len(told) - len(missed), sum(len(block) < SHORT for block in missed)
    text = (
        "Drawn with noise to the numbers of the playbook; right: class and advice as it says. "
        "Published incidents: those of the tune half that have a real series; of the "
        f"{len(missed)} without an incident, {short} have under {SHORT} records.\n\n"
        + table(("incident", "found", "right", "of"), [*rows, *starts])
    )
    right, total = (sum(int(row[at]) for row in rows) for at in (2, 3))
    early = [sum(int(row[at]) for row in starts) for at in (2, 3)]
    return text, [
        ("the playbook's incidents: class and advice right", share_of(right, total), "95 %"),
        ("bad starts found", share_of(*early), "90 %"),
        ("published incidents found", share_of(found, len(told)), "20 of 26"),
    ]


def _drawn_rows(drawn: list[Drawn], title: str = "") -> list[tuple[str, int, int, int]]:
    by_kind: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for one in drawn:
        by_kind[title or one.kind].append(judge_drawn(one))
    return [
        (kind, sum(found for found, _ in said), sum(right for _, right in said), len(said))
        for kind, said in by_kind.items()
    ]


if __name__ == "__main__":
    main()
