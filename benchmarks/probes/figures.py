"""The tables of the experiments."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.probes.places import is_right
from benchmarks.results import table

Outcomes = Mapping[tuple[str, int], Mapping[str, Any]]

CAUSE_OF = {"F13w": "F13", "F18d": "F18"}
"""Kinds that are a second way to cause the same fault."""

HARDWARE = ("hardware", "device")


def cause_table(outcomes: Outcomes, kinds: Sequence[str]) -> tuple[str, int, int, int]:
    """Right first with and without experiments, by kind; and the sums."""
    rows, right_with, right_without, total = [], 0, 0, 0
    for kind in kinds:
        found = [outcome for (name, _), outcome in outcomes.items() if name == kind]
        seen = [one for one in found if one["with"] is not None]
        wanted = CAUSE_OF.get(kind, kind)
        good = sum(one["with"] == wanted for one in seen)
        plain = sum(one["without"] == wanted for one in seen)
        made = sorted({answer["probe"] for one in found for answer in one["answers"]})
        right_with, right_without = right_with + good, right_without + plain
        total += len(seen)
        others = sorted({str(one["with"]) for one in seen if one["with"] != wanted})
        rows.append(
            [
                kind,
                len(found),
                len(seen),
                f"{plain} of {len(seen)}",
                f"{good} of {len(seen)}",
                ", ".join(others),
                ", ".join(made) or "none",
            ]
        )
    header = ("fault", "runs", "with an incident", "right without", "right with", "taken for")
    return table((*header, "experiments"), rows), right_with, right_without, total


def cost_table(outcomes: Outcomes) -> str:
    """Steps done again and time, in steps of the run, by experiment."""
    by_name: dict[str, list[tuple[int, float]]] = {}
    for outcome in outcomes.values():
        for answer in outcome["answers"]:
            if answer["steps"]:
                in_steps = answer["seconds"] / outcome["step_seconds"]
                by_name.setdefault(answer["probe"], []).append((answer["steps"], in_steps))
    rows = [
        [
            name,
            len(found),
            f"{statistics.median(steps for steps, _ in found):g}",
            max(steps for steps, _ in found),
            f"{statistics.median(time for _, time in found):.1f}",
            f"{max(time for _, time in found):.1f}",
        ]
        for name, found in sorted(by_name.items())
    ]
    header = ("experiment", "made", "steps done again, median", "worst", "time in steps, median")
    return table((*header, "worst"), rows)


def hardware_line(outcomes: Outcomes) -> str:
    """How often hardware was named, where it was and where it was not."""
    named = ranks = total = wrong = others = 0
    for (kind, _), outcome in outcomes.items():
        again = [answer for answer in outcome["answers"] if answer["probe"] == "again"]
        says = [answer for answer in again if answer["answer"] in HARDWARE]
        if kind in ("F13", "F13w", "F14") and outcome["with"] is not None:
            total += 1
            named += bool(says)
            truth = outcome["truth"].get("rank")
            ranks += any((answer["facts"] or {}).get("rank") == truth for answer in says)
        elif kind in ("F02", "F12"):
            others += 1
            wrong += bool(says)
    return (
        f"Hardware named in {named} of {total} runs with F13, F13w or F14 and an incident, the "
        f"right rank in {ranks} (bar: all; F13 and F13w run on one rank, F14 on two); in {wrong} "
        f"of {others} runs with F02 or F12 (bar: 0)."
    )


def sequences_line(outcomes: Outcomes) -> str:
    """How often the offending sequences of F02 are those that were planted, and how much of the
    first ones is named: their tokens are all planted."""
    found = right = total = 0
    shares = []
    for (kind, _), outcome in outcomes.items():
        if kind != "F02" or outcome["with"] is None:
            continue
        total += 1
        half = next((a for a in outcome["answers"] if a["probe"] == "half"), None)
        if half is None or half["answer"] != "sequences":
            continue
        found += 1
        facts = half["facts"]
        named = {row for _, _, row in facts["rows"]}
        right += named == set(range(len(named))) and len(named) == outcome["truth"].get("rows")
        shares += [(last + 1 - first) / facts["of_tokens"] for first, last in facts["tokens"]]
    share = statistics.median(shares) if shares else 0.0
    tokens = f"; median share of their tokens named {share:.2f}"
    return (
        f"Sequences of F02: bisected in {found} of {total} runs, exactly the planted ones in "
        f"{right} (bar: all){tokens if shares else ''}."
    )


def healthy_line(outcomes: Outcomes) -> str:
    """How many healthy runs were left alone."""
    alone = sum(not outcome["answers"] for outcome in outcomes.values())
    named = sorted({kind for (kind, _), outcome in outcomes.items() if outcome["answers"]})
    rest = f"; not {', '.join(named)}" if named else ""
    return f"Healthy runs without an experiment: {alone} of {len(outcomes)} (bar: all){rest}."


def remedies_line(outcomes: Outcomes) -> str:
    """What trying a remedy on a state that is thrown away has shown."""
    answers = [a for o in outcomes.values() for a in o["answers"] if a["probe"] == "remedy"]
    said = [str(answer["answer"]) for answer in answers]
    parts = ", ".join(f"{word} in {said.count(word)}" for word in ("gone", "not gone", "open"))
    return f"Remedies tried on a state that is thrown away: {len(said)} ({parts})."


def places_line(outcomes: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """How often module and operation of a planted NaN are named."""
    right, missed = 0, []
    for (module, operation), outcome in outcomes.items():
        answers = [a for a in outcome["answers"] if a["probe"] == "first-nonfinite"]
        if any(is_right(answer, module, operation) for answer in answers):
            right += 1
        else:
            said = answers[0]["sentence"] if answers else "no experiment"
            missed.append(f"{operation} in {module} ({said})")
    rest = f"; missed: {'; '.join(missed)}" if missed else ""
    return f"Module and operation of a planted NaN: right in {right} of {len(outcomes)}{rest}."
