"""Files of strangers, as they are: `scripts/bench strangers [--verdicts] [--judged] [--publish]`.

Reads the raw files in `../shared/data/strangers` where they are, and compares the losses, record
for record, with the series that was taken from each by hand. Of a file that holds several runs,
the run of the entry is asked for by its name. A file without a training loss is to be refused, and
one that holds several runs must say so in a note. `--judged` diagnoses the files instead, and
compares what is said with the labels.
"""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.kit.public_runs import DATA

from benchmarks.results import publish, table
from trimtab import diagnose
from trimtab.core.actions import ActionKind
from trimtab.core.errors import LogError
from trimtab.core.run import Run
from trimtab.core.signals import LOSS
from trimtab.readers import read_log

FILES = DATA / "strangers"
BAR = "38 of 40"
COMMAND = "scripts/bench strangers"
RIGHT = ("right", "right, one record per step", "rightly refused", "right run, with a note")

NOTE = (
    "These are half of a set of files of 40 repositories; the reader was corrected on them, so "
    "this is no estimate for others. Where several writers log every step to one file, one record "
    "per step is right, with the loss of any of them."
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one entry was read."""

    name: str
    outcome: str
    """One of `RIGHT`; or refused, wrong records, wrong losses, wrong column."""
    detail: str


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The series of one entry; a loss that was not logged is NaN here too."""

    steps: np.ndarray
    losses: np.ndarray


def judge_entry(entry: dict[str, Any]) -> Verdict:
    """Read the file of an entry and compare it with its series."""
    name, truth = entry["name"], _load_truth(entry["name"])
    run_name = None if entry["own_file"] else name.partition("__")[2]
    try:
        run = read_log(FILES / "raw" / entry["raw"], run=run_name)
    except LogError as error:
        outcome = "refused" if truth else "rightly refused"
        return Verdict(name=name, outcome=outcome, detail=str(error)[:300])
    outcome, detail = _compare(run, truth) if truth else _note_on_runs(run)
    return Verdict(name=name, outcome=outcome, detail=f"[{run.format}] {detail}")


def _load_truth(name: str) -> Truth | None:
    path = FILES / "csv" / f"{name}.csv"
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    return Truth(
        steps=np.array([float(row["step"]) for row in rows]),
        losses=np.array([float(row["loss"]) for row in rows]),
    )


def _compare(run: Run, truth: Truth) -> tuple[str, str]:
    column = run.block.column(LOSS)
    losses, steps = column.values[column.present], run.block.step[column.present]
    detail = f"{run.names.get(LOSS)!r}: {len(losses)} records, wanted {len(truth.losses)}"
    if len(losses) == len(truth.losses):
        differ = np.flatnonzero(~np.isclose(losses, truth.losses, rtol=1e-6, equal_nan=True))
        if not len(differ):
            return "right", detail
        first = differ[0]
        return "wrong losses", (
            f"{detail}; {len(differ)} differ, the first at record {first}: {losses[first]}, "
            f"wanted {truth.losses[first]}"
        )
    logged = set(zip(truth.steps.tolist(), truth.losses.tolist(), strict=True))
    read = list(zip(steps.tolist(), losses.tolist(), strict=True))
    if logged.issuperset(read) and set(steps.tolist()) == set(truth.steps.tolist()):
        return "right, one record per step", detail
    return "wrong records", detail


def _note_on_runs(run: Run) -> tuple[str, str]:
    noted = any(" runs in the file" in note for note in run.notes)
    return ("right run, with a note" if noted else "wrong column"), str(run.names.get(LOSS))


SOON = 6
"""Records after its labelled beginning within which a collapse has to be seen."""


def judge_runs(entries: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what is said of the files against their labels, with the bars."""
    labels = json.loads((FILES / "labels.json").read_text(encoding="utf-8"))["series"]
    records = incidents = acts = 0
    found = {"divergent": 0, "failed": 0, "others": 0}
    counts = dict.fromkeys(found, 0)
    for name, entry in entries.items():
        label, events = labels[name]["label"], labels[name].get("events", [])
        if label == "read_test_only":
            continue
        said = diagnose(
            FILES / "raw" / entry["raw"],
            run=None if entry["own_file"] else name.partition("__")[2],
            loss="Gen Loss" if name == "gan1202" else None,  # its reader asks for the name
        ).incidents
        for one in said:
            first = one.incident.findings[0]
            print(
                f"{name}, {label}: {one.incident_class} at record {one.incident.onset.tick}, "
                f"found at {first.tick}; {one.action.instruction}"
            )
        if label == "healthy":
            records += labels[name]["points"]
            incidents += len(said)
            acts += sum(one.action.kind is not ActionKind.WAIT for one in said)
            continue
        event = events[0] if events else {"start_record": 0, "end_record": labels[name]["points"]}
        kind = label if label in found else "others"
        last = event["start_record"] + SOON if kind == "divergent" else event["end_record"]
        counts[kind] += 1
        found[kind] += any(
            event["start_record"] - 2 <= one.incident.findings[0].tick <= last
            and (kind != "divergent" or one.action.kind is not ActionKind.WAIT)
            for one in said
        )
    rate = 10_000 * incidents / records
    yield "healthy strangers: incidents in 10,000 points", f"{rate:.2f} ({incidents})", "2"
    yield "healthy strangers: told to act", str(acts), "0"
    for kind, what in (
        ("divergent", f"collapses seen within {SOON} records, and told to act"),
        ("failed", "runs that never learnt, with an incident"),
        ("others", "other clear events"),
    ):
        yield f"strangers: {what}", f"{found[kind]} of {counts[kind]}", "all"


def main() -> None:
    """Read all files and publish how many were read right."""
    parser = argparse.ArgumentParser(prog="scripts/bench strangers", description=__doc__)
    parser.add_argument("--verdicts", action="store_true", help="print one line per entry")
    parser.add_argument("--judged", action="store_true", help="compare verdicts with labels")
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    entries = json.loads((FILES / "manifest.json").read_text(encoding="utf-8"))
    if arguments.judged:
        headlines = list(judge_runs(entries))
        print(table(("what", "measured", "bar"), headlines))
        if arguments.publish:
            publish("Verdicts: runs of strangers", f"{COMMAND} --judged --publish", NOTE, headlines)
        return
    verdicts = [judge_entry(entry) for entry in entries.values()]
    for verdict in verdicts:
        if arguments.verdicts or verdict.outcome not in RIGHT:
            print(f"{verdict.name}: {verdict.outcome}: {verdict.detail}")
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    right = f"{sum(outcomes[one] for one in RIGHT)} of {len(verdicts)}"
    print(f"{right} right: {dict(outcomes)}")
    if arguments.publish:
        publish(
            "Readers: files of strangers",
            f"{COMMAND} --publish",
            NOTE,
            [("files of strangers: every loss right, or rightly refused", right, BAR)],
        )


if __name__ == "__main__":
    main()
