"""Diagnose a run: read it, judge it, explain every incident.

    path, text, table --> Source --> Run --> Judge --> incidents --> build_report --> RunReport
                 (readers, journal)          (detectors)             (causes, actions)

The command, the lab and the live guard all make their reports here.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError, JournalError
from trimtab.core.incidents import (
    Incident,
    IncidentChange,
    IncidentTransition,
    Transition,
    transitions_of,
)
from trimtab.core.run import Reader, Run, RunFacts
from trimtab.core.text import digits
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures import flat_loss, has_never_fallen
from trimtab.journal import JournalRun, RunDirectory
from trimtab.journal.batches.batch_report import MARGIN, BatchReport
from trimtab.journal.notes import dismissals
from trimtab.judge import Judge
from trimtab.readers.facts import known_facts
from trimtab.readers.table import Wanted
from trimtab.report.incident_files import read_batches
from trimtab.report.run_report import RunReport
from trimtab.rulesets import RuleSet
from trimtab.source import Progress, ReadOptions, find_source

RECORDS_PER_BLOCK = 65536
"""Records judged between two calls of `progress`."""


def diagnose(
    log: Any,
    *,
    rules: RuleSet | str | None = None,
    config: Config | None = None,
    format: str | None = None,
    loss: str | None = None,
    step: str | None = None,
    run: str | None = None,
    facts: RunFacts | None = None,
    detectors: Sequence[Detector] = (),
    readers: Sequence[Reader] = (),
    progress: Progress | None = None,
) -> RunReport:
    """Say what happened in a run: which incidents, of which class, why, and what to do.

    Args:
        log: What you have of the run:
            - a path: a run directory, or the log of any trainer; several are parts of one run;
            - pasted text: a str with a line end, or bytes; or a file object, read from where it is;
            - a frame of pandas, polars or pyarrow; a dict of columns; a list of dicts;
            - the losses: a list, an array, a tensor or a Series; the step is the position;
            - a run of W&B or MLflow, HF's Trainer or its state, a guard, a run read before.
            A column of a frame is found by its name, as in a log; so is the step, which may be the
            index. NaN is NaN, None and null are missing; where a column cannot say "missing" (a
            float column of pandas), a NaN that only fills up a row counts as missing.
        rules: A rule set or its name, "trimtab" or "textbook"; default: as `config` says.
        config: Settings; default: those that a run directory was watched with, else all defaults.
        format: The format of the log; default: recognised by its content.
        loss: The name of the loss in the log; default: found by its name.
        step: The name of the step in the log; default: found by its name.
        run: The name of the run, where a log holds several; default: the newest, with a note.
        facts: What is known about the run; it counts more than what the log states.
        detectors: Detectors to run beside those of the rule set and of installed plug-ins.
        readers: Log readers to try before trimtab's formats and installed plug-ins.
        progress: Called now and then with what is being done and how far it is.

    Raises UnreadableLog or NoUsableLoss if there is nothing to judge, ConfigError for a setting
    that cannot be right.
    """
    source = find_source(log)
    wanted = Wanted(run=run, loss=loss, step=step)
    known = source.read(
        ReadOptions(format=format, readers=readers, progress=progress, wanted=wanted)
    )
    if facts is not None:
        known = dataclasses.replace(known, facts=known_facts(known.facts, facts))
    if config is None and isinstance(known, JournalRun):
        config = run_config(known.directory)
    judge = Judge(config, rules, detectors, plugins=True)
    done = 0
    changes: list[IncidentChange] = []
    for block in known.block.cut(RECORDS_PER_BLOCK):
        changes += judge.update(block).changes
        done += len(block)
        if progress is not None:
            progress("Judging", done, len(known.block))
    changes += judge.finish().changes
    return build_report(
        judge,
        known,
        name=source.name,
        transitions=transitions_of(changes),
        progress=progress,
    )


def build_report(
    judge: Judge,
    run: Run,
    *,
    name: str,
    incidents: Sequence[Incident] | None = None,
    transitions: Sequence[IncidentTransition] = (),
    progress: Progress | None = None,
) -> RunReport:
    """Explain all incidents of a judge that has seen the whole run, or those of `incidents`.

    `transitions` are those of the judge; what people have dismissed is added to them.
    """
    batches, unread = read_batches(run.directory) if isinstance(run, JournalRun) else ((), [])
    chosen = judge.incidents if incidents is None else incidents
    explained: list[Diagnosis] = []
    for incident in chosen:
        explained.append(explain_incident(judge, run, incident, batches))
        if progress is not None:
            progress("Explaining", len(explained), len(chosen))
    return RunReport(
        source=name,
        format=run.format,
        rules=judge.rules.name,
        incidents=tuple(explained),
        transitions=tuple(transitions_of(_dismissed(chosen, run.block), transitions)),
        block=run.block,
        facts=run.facts,
        notes=(
            *(*run.notes, *unread, *_rules_without_metric(judge, run.block), *judge.failures),
            *(() if explained else _note_of_flat_loss(run.block)),
        ),
        failures=(*run.failures, *judge.failures),
        packages=judge.packages,
        shows_text=_shows_text(run),
    )


def explain_incident(
    judge: Judge, run: Run, incident: Incident, batches: Sequence[BatchReport] = ()
) -> Diagnosis:
    """Explain one incident of a judge, with what was kept of its batch.

    The others of the judge are only compared with it: whoever follows a run explains the incident
    that changed, and no other.
    """
    # The format often names the trainer: what it trains bounds which causes are possible.
    facts = dataclasses.replace(run.facts, trainer=run.facts.trainer or run.format)
    batch = _batch_of(incident, batches)
    shown = batch if batch is None or _shows_text(run) else batch.decoded(None)
    explained = judge.explain(incident, run.block, facts, shown)
    dismissed = {event.facts["number"]: event.facts for event in dismissals(run.block.events)}
    facts_of_note = dismissed.get(incident.number, {})
    return dataclasses.replace(
        explained,
        batch=batch,
        dismissed=facts_of_note.get("dismissed", ""),
        dismissed_because=facts_of_note.get("text", ""),
    )


def _dismissed(incidents: Sequence[Incident], block: Block) -> Iterator[IncidentChange]:
    """Yield a change for each incident that a note among the events has dismissed."""
    numbered = {incident.number: incident for incident in incidents}
    for event in dismissals(block.events):
        if (one := numbered.get(event.facts["number"])) is not None:
            yield IncidentChange(transition=Transition.DISMISSED, tick=event.tick, incident=one)


def _shows_text(run: Run) -> bool:
    return not isinstance(run, JournalRun) or run_config(run.directory).privacy.text


def run_config(run: RunDirectory) -> Config:
    """Return the settings that a run was watched with; the defaults if they cannot be read."""
    try:
        settings = run.read_manifest().get("config", {})
        if isinstance(ladder := settings.get("ladder"), dict):
            ladder.pop("approve_seconds", None)  # of runs before 0.4
        return Config.from_dict(settings)
    except (ConfigError, JournalError):
        return Config()


def _note_of_flat_loss(block: Block) -> Iterator[str]:
    """Yield a sentence if a healthy run no longer learns: that is no incident."""
    flat = flat_loss(block)
    if flat is not None and has_never_fallen(block):
        yield (
            f"the loss is {digits(flat.after)}, as at first: unless this log begins late in the "
            "run, check that one batch can be overfitted"
        )
    elif flat is not None:
        yield (
            f"the loss has hardly fallen in the last {flat.records:,} records "
            f"({digits(flat.before)}, then {digits(flat.after)}): compare evaluations; if they are "
            "flat too, the run is done"
        )


def _rules_without_metric(judge: Judge, block: Block) -> Iterator[str]:
    """Yield a sentence for each rule of the user's whose metric the run does not have."""
    for name in judge.metric_rules:
        if name not in block.columns:
            names = ", ".join(sorted(block.columns))
            yield f"rules.{name} was not checked: the run has no metric {name!r}, but {names}"


def _batch_of(incident: Incident, batches: Sequence[BatchReport]) -> BatchReport | None:
    """Return what was kept for an incident; other rules may date its onset a bit differently."""
    near = [
        batch
        for batch in batches
        if incident.onset.tick - MARGIN <= batch.onset_tick <= incident.last.tick
    ]
    # Of several for the same onset, the last one is of the latest attempt to close the run.
    nearest = min((abs(b.onset_tick - incident.onset.tick) for b in near), default=0)
    return next((b for b in near[::-1] if abs(b.onset_tick - incident.onset.tick) == nearest), None)
