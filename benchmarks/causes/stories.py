"""Causes outside the lab: published incidents, the playbook's examples, public logs.

Every source gives `Judged` values: what was said about one incident, and what was true as far as it
is known. Only the series, the trainer's name and the dtype of a story are given to trimtab.
"""

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.causes.playbook import playbook_incidents
from benchmarks.results import Headline, table
from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incident_facts import Facts
from trimtab.core.incidents import Incident, IncidentClass, Moment
from trimtab.core.run import Run, RunFacts
from trimtab.core.signals import LOSS
from trimtab.explain.diagnosis import Diagnosis
from trimtab.judge import Judge
from trimtab.readers import read_log
from trimtab.report.run_report import RunReport

_COLUMNS = {
    "loss": "loss",
    "loss_ce": "loss",
    "train_loss": "loss",
    "sr_loss": "loss",
    "policy_loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "loss_scale": "loss_scale",
    "update_norm": "update_norm",
    "param_norm": "param_norm",
    "step_time_s": "step_seconds",
    "reward": "reward",
    "entropy": "entropy",
    "frac_reward_zero_std": "frac_reward_zero_std",
}
"""A story's column: the name that it has in the log that trimtab is given."""

_AXES = ("step", "epoch", "day", "log_index", "global_step")

_CLASSES = {
    "divergent": (IncidentClass.DIVERGENT, Symptom.LOSS_SPIKE),
    "NaN": (IncidentClass.DEAD, Symptom.NONFINITE_LOSS),
    "recoverable by itself": (IncidentClass.RECOVERED, Symptom.LOSS_SPIKE),
    "lingering": (IncidentClass.LINGERING, Symptom.LEVEL_SHIFT),
    "never learnt": (IncidentClass.PLATEAU, Symptom.NO_LEARNING),
    "plateau": (IncidentClass.PLATEAU, Symptom.NO_LEARNING),
    "silent": (IncidentClass.SILENT, Symptom.GRADIENT_SPIKE),
}
"""What the team saw, as an incident's class and opening symptom."""

ONSETS: Mapping[str, tuple[int, int | None]] = {
    "bloom-tr8-exp1": (6988, None),
    "marin-32b-update-norm": (76544, 76575),
    "cpm-bee-nan-oct": (1, None),
    "marin-32b-qknorm-switch": (80002, 80200),
    "bloom-tr11-first-spike": (31215, 31250),
    "cpm-ant-optstate": (7, None),
    "birdjepa-resume-data-s2": (3505, None),
    "birdjepa-resume-data-s1": (4505, None),
    "idefics-0530-cm4": (17506, 17720),
    "cpm-antplus-english": (6, 10),
    "bloom-tr8-exp10": (10636, None),
    "gemma-24-nan": (3, None),
    "idefics-resume-ratio": (1501, 1523),
    "cpm-bee-attn-nan": (8, None),
    "fairseq-512": (10199, None),
    "idefics-xid64": (16430, None),
    "marin-32b-bad-spike": (80000, None),
    "bloom-tr8-exp8": (7632, None),
    "idefics-exp9-lr": (30935, None),
    "bloom-tr8-exp7": (8455, None),
    "bloom-tr8-exp2": (1, None),
}
"""Step of the first sign and of the return, read off the published series; the row number where
the rows are days. Stories that are not here began with their first record."""

HELD_BACK = 3
"""One family of stories in this many is held back while weights are chosen: the hash decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was said about one incident, beside what is known."""

    name: str
    group: str
    said: tuple[tuple[str, float], ...]
    """The causes in the order of the report, with their probabilities."""
    named: str | None
    """The cause that the report names; None if it says that the cause is not known."""
    truth: str
    """An id, "" if it is not in the catalogue, "?" if nobody knows."""
    also: tuple[str, ...] = ()
    """Other ids that can be defended: half right."""
    knowable: bool = True
    """Whether a careful engineer would have the cause among three."""
    family: str = ""
    incident: str = "judged"
    """How the incident was found: "judged", "given" (opened at the labelled step), or "missed"."""

    @property
    def certainty(self) -> float:
        """The probability of the first cause; 0 if there is none."""
        return self.said[0][1] if self.said else 0.0

    @property
    def first(self) -> float:
        """1 if the first cause is right, 0.5 if it can be defended.

        A cause outside of the catalogue is right if none was named.
        """
        if self.truth == "":
            return 1.0 if self.named is None else (0.5 if self.named in self.also else 0.0)
        return self._credit([id for id, _ in self.said[:1]])

    @property
    def three(self) -> float:
        """The same for the first three."""
        return self.first if self.truth == "" else self._credit([id for id, _ in self.said[:3]])

    def _credit(self, ids: Sequence[str]) -> float:
        if self.truth in ids:
            return 1.0
        return 0.5 if set(ids) & set(self.also) else 0.0


def read_stories(folder: Path, *, sparse: bool) -> list[Mapping[str, Any]]:
    """Return the stories with a real series, or those with a few published rows."""
    entries = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
    return [e for e in entries if e["sparse"] is sparse and (e["series"] or e.get("raw_file"))]


def is_held_back(story: Mapping[str, Any]) -> bool:
    """Return whether a story is kept out of the tuning."""
    digest = hashlib.sha256(str(story["family"]).encode()).digest()
    return digest[0] % HELD_BACK == 0


def judge_story(folder: Path, story: Mapping[str, Any], *, given: bool) -> Judged:
    """Judge a story's series; `given`: with the incident opened at the labelled step."""
    run = run_of(folder, story)
    judge = _judged(run.block)
    incident = _given(story, run) if given else _main_incident(judge)
    diagnosis = judge.explain(incident, run.block, _facts_of(story)) if incident else None
    truth = story["truth"]
    ranking = story["from_signals_alone"]["ranking"][:3]
    also = tuple(a for a in truth.get("also") or () if a[:1] == "F" and a[1:3].isdigit())
    cause = truth["catalogue"] if truth["catalogue"][1:3].isdigit() else ""
    return Judged(
        name=story["id"],
        group=story["kind_group"],
        said=said_in(diagnosis),
        named=_named(diagnosis),
        truth=cause,
        also=also,
        knowable=not cause or cause in ranking,
        family=story["family"],
        incident="missed" if diagnosis is None else "given" if given else "judged",
    )


def story_report(folder: Path, story: Mapping[str, Any]) -> RunReport:
    """Return trimtab's report on a story's series."""
    run, facts = run_of(folder, story), _facts_of(story)
    judge = _judged(run.block)
    return RunReport(
        source=story["id"],
        format=run.format,
        rules="trimtab",
        incidents=tuple(judge.explain(one, run.block, facts) for one in judge.incidents),
        block=run.block,
        facts=facts,
    )


def _judged(block: Block) -> Judge:
    judge = Judge(plugins=False)
    judge.update(block)
    judge.finish()
    return judge


def _facts_of(story: Mapping[str, Any]) -> RunFacts:
    return RunFacts(dtype=_dtype(story["dtype"]), trainer=str(story["framework"]))


def said_in(diagnosis: Diagnosis | None) -> tuple[tuple[str, float], ...]:
    """Return the causes that a diagnosis shows, with their probabilities."""
    if diagnosis is None or diagnosis.ranking is None:
        return ()
    return tuple((c.cause.id, c.probability) for c in diagnosis.ranking.candidates if c.cause)


def _named(diagnosis: Diagnosis | None) -> str | None:
    return diagnosis.cause.id if diagnosis is not None and diagnosis.cause is not None else None


def _dtype(text: str) -> str | None:
    kinds = [kind for kind in ("fp16", "bf16", "fp8", "fp32") if kind in text]
    if "fp16" in kinds or "fp8" in kinds:
        return kinds[0]
    return None if "/amp" in text or text == "fp32/bf16" else kinds[0] if kinds else None


def story_text(folder: Path, story: Mapping[str, Any]) -> str:
    """Return a story's rows as a CSV log."""
    rows = story["series"]
    if not rows:
        lines = (folder / story["raw_file"]).read_text(encoding="utf-8").splitlines()
        names = lines[0].split(",")
        rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    axis = next((name for name in _AXES if name in rows[0]), None)
    is_step = axis in ("step", "global_step")
    kept = {out: name for name, out in _COLUMNS.items() if any(name in row for row in rows)}
    text = ["step," + ",".join(kept)]
    seen = None
    for number, row in enumerate(rows):
        step = int(row[axis]) if is_step and axis else number
        if step != seen:
            text.append(f"{step}," + ",".join(str(row.get(name, "")) for name in kept.values()))
        seen = step
    return "\n".join(text) + "\n"


def run_of(folder: Path, story: Mapping[str, Any]) -> Run:
    """Read a story's rows with trimtab's reader."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log.csv"
        path.write_text(story_text(folder, story), encoding="utf-8")
        return read_log(path)


def _given(story: Mapping[str, Any], run: Run) -> Incident:
    """Return the incident as the team described it."""
    block = run.block
    onset, end = ONSETS.get(story["id"], (int(block.step[0]), None))
    row = int(np.flatnonzero(block.step >= onset)[0])
    if "birdjepa" in story["id"]:  # segments of a restarted run have the same steps: the last one
        row = int(np.flatnonzero(block.step == onset)[-1])
    last = len(block) - 1
    stop = last if end is None else int(np.flatnonzero(block.step <= end)[-1])
    incident_class, symptom = _CLASSES[story["class"]]
    loss = block.column(LOSS)
    present = loss.finite[row : stop + 1]
    values = np.where(present, loss.values[row : stop + 1], -math.inf)
    peak = row + int(np.argmax(values))

    def moment(at: int) -> Moment:
        value = float(loss.values[at]) if loss.present[at] else None
        return Moment(step=int(block.step[at]), tick=int(block.tick[at]), loss=value)

    finding = Finding(
        detector="story",
        symptom=symptom,
        severity=Severity.ALARM,
        signal=LOSS,
        step=int(block.step[row]),
        tick=int(block.tick[row]),
        value=math.nan if symptom is Symptom.NONFINITE_LOSS else float(loss.values[row]),
    )
    return Incident(
        number=1,
        onset=moment(row),
        peak=moment(peak),
        end=None if end is None else moment(stop),
        last=moment(stop),
        records=stop - row + 1,
        incident_class=incident_class,
        certainty=1.0,
        facts=Facts(),
        findings=(finding,),
        num_findings=1,
    )


def _main_incident(judge: Judge) -> Incident | None:
    """Return the longest incident, which a reader would look at."""
    return max(judge.incidents, key=lambda item: item.records, default=None)


# Public logs: their kinds are known, most of their causes are not.


def judge_public(folder: Path, split: str) -> Iterator[Judged]:
    """Judge every public log of a split."""
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))["series"]
    for name, label in sorted(labels.items()):
        if label["split"] != split or not (folder / f"{name}.csv").exists():
            continue
        run = read_log(folder / f"{name}.csv")
        judge = _judged(run.block)
        for incident in judge.incidents:
            diagnosis = judge.explain(incident, run.block, run.facts)
            yield Judged(
                name=f"{name}@{incident.onset.step}",
                group=label["label"],
                said=said_in(diagnosis),
                named=_named(diagnosis),
                truth="?",
                family=name,
            )


# The playbook's worked examples, drawn with noise.


def judge_playbook() -> Iterator[Judged]:
    """Judge every variant of the playbook's incidents."""
    for drawn in playbook_incidents():
        judge = _judged(drawn.block)
        incident = _main_incident(judge)
        diagnosis = judge.explain(incident, drawn.block, drawn.facts) if incident else None
        yield Judged(
            name=drawn.name,
            group=drawn.group,
            said=said_in(diagnosis),
            named=_named(diagnosis),
            truth=drawn.cause,
            family=drawn.name,
            incident="judged" if diagnosis else "missed",
        )


# Tables.


def report(data: Path) -> tuple[str, list[Headline]]:
    """Return the tables, as Markdown, and the headlines."""
    real, sparse = (read_stories(data / "stories", sparse=sparse) for sparse in (False, True))
    judged = [judge_story(data / "stories", story, given=False) for story in real]
    given = [judge_story(data / "stories", story, given=True) for story in real]
    few = [judge_story(data / "stories", story, given=True) for story in _with_loss(sparse)]
    drawn = list(judge_playbook())
    public = [item for split in ("tune", "held-out") for item in judge_public(data / "runs", split)]
    held = {story["id"] for story in real if is_held_back(story)}
    parts = {
        "stories with a series, incident as judged": judged,
        "stories with a series, incident opened at the labelled step": given,
        "of these, used to choose strengths": [j for j in given if j.name not in held],
        "of these, held back": [j for j in given if j.name in held],
        "stories with under six rows, incident given": few,
        "playbook, drawn": drawn,
    }
    head = ("measured on", "incidents", "missed", "right first", "right in three", "where named")
    rows = {name: summary(name, part) for name, part in parts.items()}
    certain = {"stories, as judged and given": [*judged, *given, *few], "playbook": drawn}
    certain["public logs"] = public
    wrong = [
        f"{item.name} ({item.named} for {item.truth or 'one outside of the catalogue'})"
        for item in (*given, *few, *drawn)
        if item.named is not None and item.first == 0
    ]
    text = "\n\n".join(
        [
            "Right in three: of those that a careful engineer could know. A cause outside of the "
            "catalogue is right where none was named; one that can be defended counts half. Of "
            f"{len(public)} incidents of public logs, whose causes are not known, a cause is named "
            f"in {sum(item.named is not None for item in public)}.",
            table(head, list(rows.values())),
            f"Named and wrong: {', '.join(wrong) or 'none'}.",
            calibration(certain),
        ]
    )
    return text, _headlines(rows)


def _headlines(rows: Mapping[str, tuple[str, ...]]) -> list[Headline]:
    as_judged, as_given, *_, drawn = rows.values()
    return [
        ("published incidents: cause first, incident as judged", as_judged[3], "-"),
        ("the same, incident opened where the team saw it", as_given[3], "-"),
        ("the same: cause among the first three", as_given[4], "-"),
        ("the same: right where a cause is named", as_given[5], "-"),
        ("the playbook's examples: cause first", drawn[3], "-"),
    ]


def _with_loss(stories: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those whose rows have a loss."""
    names = [name for name, out in _COLUMNS.items() if out == "loss"]
    return [s for s in stories if any(name in row for row in s["series"] for name in names)]


def weights_of(judged: Sequence[Judged]) -> list[float]:
    """Return the weight of each: stories of one family count as one."""
    counts = {item.family: sum(o.family == item.family for o in judged) for item in judged}
    return [1 / counts[item.family] for item in judged]


def summary(name: str, judged: Sequence[Judged]) -> tuple[str, ...]:
    """Return a row: how many, right first, right in three, named, right when named."""
    weights = weights_of(judged)
    known = [(item, w) for item, w in zip(judged, weights, strict=True) if item.truth != "?"]
    total = sum(w for _, w in known)
    first = sum(w * item.first for item, w in known)
    able = [(item, w) for item, w in known if item.knowable]
    three = sum(w * item.three for item, w in able)
    named = [(item, w) for item, w in known if item.named is not None]
    right = sum(w * item.first for item, w in named)
    return (
        name,
        f"{len(judged)} ({total:.0f} families)",
        str(sum(item.incident == "missed" for item in judged)),
        _percent(first, total),
        _percent(three, sum(w for _, w in able)),
        _percent(right, sum(w for _, w in named)),
    )


def calibration(groups: Mapping[str, Sequence[Judged]]) -> str:
    """Return how often what is said with 50 to 90 and over 90 % is right, where that is known."""
    rows = []
    for group, judged in groups.items():
        for name, low, high in (("50 to 90 %", 0.5, 0.9), ("over 90 %", 0.9, 1.01)):
            inside = [j for j in judged if low < j.certainty <= high and j.named is not None]
            known = [j for j in inside if j.truth != "?"]
            right = _percent(sum(j.first for j in known), len(known))
            if inside:
                rows.append((group, name, len(inside), right))
    return table(("said of", "with", "incidents", "right"), rows)


def _percent(part: float, total: float) -> str:
    return f"{part:.1f} of {total:.1f} ({100 * part / total:.0f} %)" if total else "-"
