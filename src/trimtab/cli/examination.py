"""Examination: a log or run directory in, an account out. What `diagnose` and `report` share."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from trimtab.cli.progress import patient_progress
from trimtab.core.block import Block
from trimtab.core.config import Rules
from trimtab.core.errors import ConfigError, JournalError, NoUsableLoss
from trimtab.core.signals import LOSS, REFERENCE_LOSS
from trimtab.detect.reference.side_by_side import lay_beside, same_batches
from trimtab.diagnose.context import RunFacts
from trimtab.journal import RunDirectory, read_journal
from trimtab.judge import Judge
from trimtab.policy.incident_report import IncidentReport
from trimtab.readers import LogFormat, read_log
from trimtab.report.incident_files import write_incident
from trimtab.report.run_report import RunReport

_CUT = 65536
"""Records judged between two movements of the progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was read, before anybody judged it."""

    block: Block
    format: str
    facts: RunFacts
    notes: tuple[str, ...]


def examine(
    path: Path,
    rules: Rules,
    *,
    price_per_hour: float | None = None,
    log_format: str | None = None,
    reference: Path | None = None,
) -> RunReport:
    """Read and judge a log or a run directory; raises TrimtabError if it cannot be read."""
    source = read_source(path, log_format)
    if reference is not None:
        source = _beside(source, reference)
    return RunReport(
        source=str(path),
        format=source.format,
        rules=rules.value,
        block=source.block,
        facts=source.facts,
        notes=source.notes,
        opinions=_judge(source, rules),
        price_per_hour=price_per_hour,
    )


def read_source(path: Path, log_format: str | None = None) -> Source:
    """Read a log or a run directory; raises TrimtabError if there is no loss to be had."""
    run = RunDirectory.find(path) if log_format is None else None
    source = _read_run(run) if run else _read_foreign(path, log_format)
    if not source.block.column(LOSS).recorded:
        raise NoUsableLoss(f"{path} holds {len(source.block)} records and no loss among them")
    return source


def write_incidents(account: RunReport, folder: Path) -> list[Path]:
    """Write the files of every incident; return the post-mortems."""
    written = []
    with patient_progress("Writing") as advance:
        for count, opinion in enumerate(account.opinions, start=1):
            incident = opinion.diagnosis.incident
            name = f"{incident.number:04d}-step-{incident.onset.step:06d}"
            written.append(write_incident(folder / name, opinion, account))
            advance(count, len(account.opinions))
    return written


def _beside(source: Source, reference: Path) -> Source:
    """The source with what the reference has at the same batches."""
    block = lay_beside(source.block, read_source(reference).block)
    count = int((block.column(REFERENCE_LOSS).present & same_batches(block)).sum())
    if not count:
        raise ConfigError(
            f"{reference} has no batch in common with this run; give a run over the same data in "
            "the same order"
        )
    note = f"compared with {reference} at {count:,} of {len(block):,} records"
    return dataclasses.replace(source, block=block, notes=(*source.notes, note))


def _judge(source: Source, rules: Rules) -> tuple[IncidentReport, ...]:
    judge = Judge(rules=rules)
    with patient_progress("Judging") as advance:
        done = 0
        for piece in source.block.cut(_CUT):
            judge.update(piece)
            done += len(piece)
            advance(done, len(source.block))
    judge.finish()
    opinions = []
    with patient_progress("Explaining") as advance:
        for incident in judge.incidents:
            opinions.append(judge.explain(incident, source.block, source.facts))
            advance(len(opinions), len(judge.incidents))
    return tuple(opinions)


def _read_run(run: RunDirectory) -> Source:
    with patient_progress("Reading") as advance:
        reading = read_journal(run, progress=advance)
    notes = [str(damage) for damage in reading.damage]
    try:
        facts = RunFacts.from_manifest(run.read_manifest())
    except JournalError as error:  # the records are worth judging without it
        facts = RunFacts()
        notes.append(str(error))
    return Source(block=reading.block, format="journal", facts=facts, notes=tuple(notes))


def _read_foreign(path: Path, log_format: str | None) -> Source:
    known = [format.value for format in LogFormat]
    if log_format is not None and log_format not in known:
        raise ConfigError(f"{log_format!r} is no format of a log; known are {', '.join(known)}")
    given = LogFormat(log_format) if log_format else None
    with patient_progress("Reading") as advance:
        reading = read_log(path, format=given, progress=advance)
    return Source(
        block=reading.block, format=reading.format.value, facts=RunFacts(), notes=reading.notes
    )
