"""Cases: public runs as files without names, and what is true of each.

    healthy       nothing happens: whole runs
    came back     labelled spikes or restarts, all of which are over when the log ends: whole runs
    up            the same runs, cut three records after the peak of a spike that will come back
    lost          runs that end in NaN, diverge, lose their reward, or never learn: whole runs
    stories       published incidents with a few rows each, as their teams tell them

A tool is given the files alone. The labels are those that detection is measured with
(`benchmarks/scoring.py`); nobody's answers were used to make them.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.kit.public_runs import DATA, RUNS, Label, RealRun, real_runs

from benchmarks.causes.stories import ONSETS, read_stories, story_text
from benchmarks.scoring import counted, zone

CONTINUE, ACT = ("continue", "wait"), ("stop", "roll back", "lower LR")
"""What there is to answer; within a group every word is as good as the other."""

BACK = ("recovered", "recovering", "lingering")
"""A spike that has come back late is called lingering by its labels."""
LOST = ("divergent", "dead", "collapsed", "plateau")

AFTER_PEAK = 3
"""Records after the peak at which a case of the group `up` ends."""

LEAST_BEFORE = 100
"""Records before the spike of such a case."""

STORY_CLASSES = {
    "divergent": (("divergent", "dead"), ACT),
    "NaN": (("dead",), ACT),
    "recoverable by itself": (BACK, CONTINUE),
    "lingering": (("lingering",), ACT),
    "never learnt": (("plateau", "divergent"), ACT),
    "plateau": (("plateau",), ACT),
}
"""What a team saw, as classes and acts; what they saw in another signal than the loss is left out:
whether it needed an act was for them to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One file, and what is true of the run in it."""

    file: str
    group: str
    source: str
    """The series that it was made from; not for tools."""
    is_held_out: bool
    """Whether trimtab's limits were never chosen on it."""
    is_incident: bool
    onsets: tuple[tuple[int, int], ...] = ()
    """First and last step in which an onset is right, for each event; empty if not scored."""
    classes: tuple[str, ...] = ()
    """The right classes; empty if not scored."""
    acts: tuple[str, ...] = CONTINUE


def write_cases(folder: Path) -> list[Case]:
    """Write every file, and `truth.json`, which no tool should see; return the cases."""
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    cases = []
    for number, (case, text) in enumerate(_all(), start=1):
        named = f"{number:04d}.csv"
        (files / named).write_text(text, encoding="utf-8")
        cases.append(Case(**{**asdict(case), "file": f"files/{named}"}))
    truth = json.dumps([asdict(case) for case in cases], indent=1)
    (folder / "truth.json").write_text(truth + "\n", encoding="utf-8")
    return cases


def read_cases(folder: Path) -> list[Case]:
    entries = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    return [_case(entry) for entry in entries]


def _case(entry: dict[str, Any]) -> Case:
    lists = {name: tuple(entry[name]) for name in ("classes", "acts")}
    onsets = tuple((first, last) for first, last in entry["onsets"])
    return Case(**{**entry, **lists, "onsets": onsets})


def _all() -> Iterator[tuple[Case, str]]:
    for run in real_runs():
        text = (RUNS / f"{run.name}.csv").read_text(encoding="utf-8")
        yield _whole(run), text
        cut = _cut(run)
        if cut is not None:
            case, rows = cut
            yield case, "\n".join(text.splitlines()[: rows + 1]) + "\n"
    yield from _strangers()
    for story in read_stories(DATA / "stories", sparse=False):
        yield from _story(story)


def _whole(run: RealRun) -> Case:
    events = [label for label in run.labels if label.kind != "blip"]
    is_lost = run.label in ("nan", "failed", "divergent")
    # The worst may be any of them, so the class is known only where all ended alike.
    classes = LOST if is_lost else BACK if run.label == "spikes" else ()
    return Case(
        file="",
        group="healthy" if run.label == "healthy" else "lost" if is_lost else "came back",
        source=run.name,
        is_held_out=run.split == "held-out",
        is_incident=run.label != "healthy",
        onsets=tuple(_steps(run, one) for one in events) if run.label != "healthy" else (),
        classes=classes,
        acts=ACT if is_lost else CONTINUE,
    )


def _steps(run: RealRun, label: Label) -> tuple[int, int]:
    first, last = zone(run, label)
    steps = run.block.step
    return int(steps[first]), int(steps[min(last, len(steps) - 1)])


def _cut(run: RealRun) -> tuple[Case, int] | None:
    """Return a run that ends while its loss is up, and its number of records."""
    for label in counted(run):
        first, last = zone(run, label)
        peak = int(np.searchsorted(run.block.step, label.peak))
        rows = peak + 1 + AFTER_PEAK
        if label.kind == "spike" and first >= LEAST_BEFORE and peak + AFTER_PEAK < last:
            events = [one for one in run.labels if one.start <= label.start and one.kind != "blip"]
            case = Case(
                file="",
                group="up",
                source=run.name,
                is_held_out=run.split == "held-out",
                is_incident=True,
                onsets=tuple(_steps(run, one) for one in events),
            )
            return case, rows
    return None


def _strangers() -> Iterator[tuple[Case, str]]:
    folder = DATA / "strangers"
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))["series"]
    for name, entry in labels.items():
        path = folder / "csv" / f"{name}.csv"
        if entry["label"] == "read_test_only" or not path.exists():
            continue
        is_lost = entry["label"] in ("divergent", "failed")
        is_healthy = entry["label"] == "healthy"
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        steps = [int(float(row["step"])) for row in rows]
        case = Case(
            file="",
            group="healthy" if is_healthy else "lost" if is_lost else "came back",
            source=name,
            is_held_out=False,
            is_incident=not is_healthy,
            onsets=() if is_healthy else _ranges(steps, entry["events"]),
            classes=LOST if is_lost else BACK if entry["label"] == "spikes" else (),
            acts=ACT if is_lost else CONTINUE,
        )
        yield case, path.read_text(encoding="utf-8")


def _ranges(steps: Sequence[int], events: Sequence[dict[str, Any]]) -> tuple[tuple[int, int], ...]:
    found = []
    for event in events:
        first, last = event["start_record"], event["end_record"]
        first, last = max(first - 2, 0), len(steps) - 1 if last is None else last
        # Where a restart goes back to step 0, no range of steps says when.
        found += [(steps[first], steps[last])] if steps[first] <= steps[last] else []
    return tuple(found)


def _story(story: Mapping[str, Any]) -> Iterator[tuple[Case, str]]:
    if story["class"] not in STORY_CLASSES:
        return
    classes, acts = STORY_CLASSES[story["class"]]
    onset, end = ONSETS.get(story["id"], (None, None))
    text = story_text(DATA / "stories", story)
    last = int(text.rstrip().rsplit("\n", 1)[1].split(",")[0])
    known = onset is not None and "birdjepa" not in story["id"]  # whose segments repeat their steps
    case = Case(
        file="",
        group="stories",
        source=story["id"],
        is_held_out=False,
        is_incident=True,
        onsets=((onset - 10, last if end is None else end),) if known and onset else (),
        classes=classes,
        acts=acts,
    )
    yield case, text
