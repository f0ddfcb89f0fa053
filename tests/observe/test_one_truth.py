"""Whatever happened in a run, every output of it shows one class, one onset and one thing to do."""

import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.cases import some_of
from tests.kit.shown import (
    Shown,
    disagreements,
    of_facts,
    of_files,
    of_json,
    report_views,
    truth_of,
)
from tests.kit.synthetic import falling_loss

import trimtab
from trimtab.core.events import SETTING_CHANGED, UNDO, UNDO_OUTCOME
from trimtab.core.incidents import Incident
from trimtab.core.sink import RunStatus
from trimtab.core.text import clause
from trimtab.integrations.alerts.alert import RunAlerts
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex, Verdict
from trimtab.journal.checkpoints.manifest import CheckpointFacts
from trimtab.journal.news import INCIDENT, read_news
from trimtab.observe.liveness import Standing
from trimtab.observe.run_observer import Listener, RunObserver
from trimtab.observe.server.run_feed import incident_text

LOGS, LIVE_RUNS = 2000, 200

Row = tuple[int, int, dict[str, float]]
"""Step, attempt and signals of a record."""


def random_run(seed: int) -> list[Row]:
    """Return the records of a run in which chance has planted up to four troubles."""
    random_ = random.Random(seed)
    steps = random_.choice((30, 150, 500, 1200))
    loss = falling_loss(steps, seed=seed, noise=random_.choice((0.005, 0.03, 0.1)))
    norm = np.random.default_rng(seed + 1).normal(0.5, 0.05, steps)
    lr = 3e-4 * np.linspace(1.0, random_.choice((0.0, 0.5, 1.0)), steps)
    discarded = np.zeros(steps)
    for _ in range(random_.randrange(5)):
        at, left = random_.randrange(2, steps), np.arange(steps)
        after = left >= at
        height = random_.choice((0.3, 1.0, 4.0))
        match random_.choice(TROUBLES):
            case "spike":
                decay = random_.choice((1, 10, 80, 400))
                loss[after] += height * np.exp(-(left[after] - at) / decay)
                norm[at] *= random_.choice((1, 50))
            case "shift":
                loss[after] += height
            case "rise":
                loss[after] += 0.02 * height * (left[after] - at)
            case "nan":
                loss[at : at + random_.choice((1, 2, 8))] = math.nan
            case "dead":
                loss[after] = norm[after] = math.nan
            case "frozen":
                loss[after] = loss[at]
            case "norm":
                norm[at : at + random_.choice((1, 20))] *= 100
            case "rate":
                lr[at : at + random_.choice((5, steps))] *= 30
            case "discards":
                end = at + random_.choice((1, 5, 150))
                loss[at:end] = math.nan
                discarded[at:end] = 1.0
    columns = {"loss": loss, "grad_norm": norm, "lr": lr}
    if random_.random() < 0.3:
        columns["discarded"] = discarded
    rows = [(at, 0, {name: float(v[at]) for name, v in columns.items()}) for at in range(steps)]
    if random_.random() < 0.3:  # stopped, and started again from before that
        stopped = random_.randrange(steps // 2, steps)
        back = random_.randrange(stopped)
        again = random_run(seed + 10**6)[: steps - back] if random_.random() < 0.3 else rows[back:]
        rows = rows[:stopped] + [(back + k, 1, row[2]) for k, row in enumerate(again)]
    return rows


TROUBLES = ("spike", "spike", "shift", "rise", "nan", "dead", "frozen", "norm", "rate", "discards")


def saved_steps(seed: int, rows: list[Row]) -> list[int]:
    random_ = random.Random(seed + 7)
    return sorted({random_.randrange(1, len(rows)) for _ in range(random_.choice((0, 1, 4)))})


@pytest.mark.parametrize("seed", some_of(range(LOGS), 40))
def test_every_view_of_a_log_says_the_same(seed: int, tmp_path: Path) -> None:
    rows = random_run(seed)
    names = ("loss", "grad_norm", "lr", "discarded")
    lines = [",".join(["step", *names])]
    for at, _, row in rows:
        values = (f"{row[name]:.6g}" if name in row else "" for name in names)
        lines.append(",".join([str(at), *values]))
    log = tmp_path / "run.csv"
    log.write_text("\n".join(lines) + "\n")
    for step in saved_steps(seed, rows):
        (tmp_path / f"checkpoint-{step}").mkdir()
    report = trimtab.diagnose(log)
    assert disagreements(truth_of(report), report_views(report)) == []


class Hearing(Listener):
    """Keeps what an observer says to the training process."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.incidents: dict[int, Incident] = {}

    def line(self, level: int, text: str) -> None:
        self.lines.append(text)

    def incident(self, incident: Incident, *, is_new: bool) -> None:
        self.incidents[incident.number] = incident


@pytest.mark.parametrize("seed", some_of(range(LIVE_RUNS), 3))
def test_every_output_of_a_live_run_says_the_same(seed: int, tmp_path: Path) -> None:
    run, hearing = RunDirectory(tmp_path / "x1"), Hearing()
    rows = random_run(seed)
    saved = saved_steps(seed, rows)
    random_ = random.Random(seed + 3)
    index: CheckpointIndex | None = None
    observer: RunObserver | None = None
    journal = JournalWriter(run)
    for at, (step, attempt, signals) in enumerate(rows):
        journal.append(step, signals, attempt)
        if signals.get("discarded"):
            journal.event("step discarded", step, reasons=["loss not finite"])
        if random_.random() < 0.003:
            journal.event(SETTING_CHANGED, step, name="lr", before=1e-4, after=3e-4)
        if random_.random() < 0.003 and step > 8:
            journal.event(UNDO, step, why="x is not finite", how_sure="certain", updates_lost=8)
            helped = random_.random() < 0.5
            journal.event(UNDO_OUTCOME, step, undone_at=step, helped=helped)
        if at in saved:
            index = index or CheckpointIndex(run.home)
            index.add(entry(step, attempt, len(index.entries)))
        if random_.random() < 8 / len(rows):  # an observer looks, and may be started again
            journal.close()
            journal = JournalWriter(run)
            observer = observer or RunObserver(run, hearing)
            observer.poll()
            if random_.random() < 0.3:
                observer.close()
                observer = None
    journal.close()
    observer = observer or RunObserver(run, hearing)
    observer.poll()
    observer.note_standing(Standing(status=RunStatus.ENDED, how="closed"))
    observer.close()
    assert said_wrongly(run, hearing.incidents, hearing.lines) == []


def entry(step: int, attempt: int, serial: int) -> CheckpointEntry:
    folder = f"step-{step:08d}" + (f"-{serial}" if serial else "")
    facts = CheckpointFacts(
        step=step, data_position=step, attempt=attempt, world=1, num_bytes=1, serial=serial
    )
    return CheckpointEntry(folder=folder, facts=facts)


def said_wrongly(run: RunDirectory, heard: dict[int, Incident], lines: list[str]) -> list[str]:
    """Return what any output of a run that is over says otherwise than `trimtab diagnose RUN`."""
    report = trimtab.diagnose(run.root)
    truth = truth_of(report)
    news = {e.facts["number"]: e for e in read_news(run) if e.kind == INCIDENT}

    def outputs() -> Iterator[tuple[str, Shown]]:
        yield from report_views(report)
        written = json.loads((run.home / "verdict.json").read_text())
        assert written["verdict"] == report.verdict
        yield "verdict.json", of_json(written)
        yield from of_files(run.incidents)
        yield "observer.jsonl", {n: of_facts(event.facts) for n, event in news.items()}
        yield "on_incident", {n: of_incident(one) for n, one in heard.items()}
        for event in news.values():
            for alert in RunAlerts("x1", "", {}).from_event(event):
                yield "alert", {event.facts["number"]: of_alert(alert.to_dict())}

    found = disagreements(truth, outputs())
    if truth.keys() != news.keys() or (heard and truth.keys() != heard.keys()):
        found.append(f"incidents {set(truth)}, in observer.jsonl {set(news)}, heard {set(heard)}")
    for number, event in news.items():
        if clause(truth[number]["do"]) not in incident_text(event.facts):
            found.append(f"incident {number} in the fleet: {incident_text(event.facts)}")
    bad = {e.folder for e in CheckpointIndex(run.home).entries if e.verdict is Verdict.BAD}
    named = [parts["do"] for parts in truth.values() if any(one in parts["do"] for one in bad)]
    return [*found, *(f"names a bad checkpoint: {do}" for do in named), *wrong_lines(truth, lines)]


def of_incident(incident: Incident) -> dict[str, Any]:
    return {"class": str(incident.incident_class), "onset": incident.onset.step}


def of_alert(alert: dict[str, Any]) -> dict[str, Any]:
    said = dict(line.split(": ", 1) for line in alert["text"].splitlines() if ": " in line)
    facts = alert["facts"]
    assert said["Class"] == f"{facts['class']}."
    return {
        "class": facts["class"],
        "onset": facts["onset"],
        "do": said["Do"],
        "checkpoint": facts["checkpoint"] or None,
    }


def wrong_lines(truth: Shown, lines: list[str]) -> list[str]:
    """Return the last line in the log about each incident, if it says something else."""
    last = {int(line.split()[1]): line for line in lines if line.startswith("incident ")}
    wrong = []
    for number, line in last.items():
        parts = truth[number]
        do = re.search(r"do: (.*?)(?:; cause: .*)?$", line)
        has_onset = re.search(rf", steps? {parts['onset']}\b", line) is not None
        is_cut = line.endswith("…")
        if not has_onset or (do and not is_cut and do[1] != clause(parts["do"])):
            wrong.append(line)
    return wrong
