"""The textbook rules on the real runs: the baseline to beat."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.kit.public_runs import SPLITS, Label, RealRun, real_runs

from benchmarks.results import publish, table
from benchmarks.scoring import Score, score
from trimtab.core.findings import Severity
from trimtab.core.incidents import Incident
from trimtab.judge import Judge

_CLASSES = {"recovered": "recoverable", "lingering": "lingering", "divergent": "divergent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run with its score and its incidents."""

    run: RealRun
    score: Score
    incidents: tuple[Incident, ...]


def judge_run(run: RealRun) -> Judged:
    """Judge one run by the textbook rules."""
    judge = Judge(rules="textbook")
    findings = judge.update(run.block).findings
    judge.finish()
    alarms = [run.block.row_of(f.tick) for f in findings if f.severity is Severity.ALARM]
    return Judged(run=run, score=score(run, alarms), incidents=judge.incidents)


def main() -> None:
    """Judge every run and publish one table per split."""
    judged = [judge_run(run) for run in real_runs()]
    rows = [row for split in SPLITS for row in _rows(split, judged)]
    body = [
        f"All {len(judged)} public runs, read and judged by the textbook rules; strict scoring "
        "(`benchmarks/scoring.py`). No bar: this is the baseline that trimtab's rules must beat. "
        "In the labels a spike is recovered if it is back within 100 steps or 2 records, in the "
        "textbook within 50 records, so the classes also differ by definition.",
        "",
        table(("split", "what", "textbook rules"), rows),
    ]
    publish("Textbook rules on the real runs", "scripts/bench textbook", "\n".join(body))


def _rows(split: str, everything: Sequence[Judged]) -> list[tuple[str, str, str]]:
    judged = [item for item in everything if item.run.split == split]
    healthy = [item for item in judged if item.run.label == "healthy"]
    every_step = [i for i in healthy if i.run.is_every_step and "llm" in i.run.tags]
    found = [(item, label, row) for item in judged for label, row in item.score.found]
    llama = [entry for entry in found if "8B" in entry[0].run.tags]
    return [
        (split, "runs, records", f"{len(judged)}, {sum(len(i.run.block) for i in judged):,}"),
        (
            split,
            "false episodes per 10,000 records, every-step LLM runs",
            _rate(every_step),
        ),
        (split, "false episodes per 10,000 records, all healthy runs", _rate(healthy)),
        (
            split,
            "healthy runs with a false episode",
            f"{sum(i.score.num_false > 0 for i in healthy)} of {len(healthy)}",
        ),
        (split, "found, high confidence", _recall(found, "high")),
        (split, "found, medium confidence", _recall(found, "medium")),
        (split, "Llama-3.1-8B spikes: alarm before the peak", _early(llama)),
        (split, "incident class correct, of those found and labelled", _classes(found)),
        (split, "incidents opened", f"{sum(len(item.incidents) for item in judged):,}"),
    ]


Found = tuple[Judged, Label, int | None]


def _rate(judged: Sequence[Judged]) -> str:
    records = sum(item.score.num_records for item in judged)
    false = sum(item.score.num_false for item in judged)
    return f"{1e4 * false / records:.1f} ({false} in {records:,})"


def _recall(found: Sequence[Found], confidence: str) -> str:
    rows = [row for _, label, row in found if label.confidence == confidence]
    return _share(sum(row is not None for row in rows), len(rows))


def _early(found: Sequence[Found]) -> str:
    early = sum(row is not None and item.run.block.step[row] < lab.peak for item, lab, row in found)
    return _share(early, len(found))


def _classes(found: Sequence[Found]) -> str:
    right = total = 0
    for item, label, row in found:
        if row is None or label.outcome not in _CLASSES:
            continue
        tick = int(item.run.block.tick[row])
        for incident in item.incidents:
            if incident.onset.tick <= tick <= incident.last.tick:
                total += 1
                right += incident.incident_class == _CLASSES[label.outcome]
    return _share(right, total)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "none"


if __name__ == "__main__":
    main()
