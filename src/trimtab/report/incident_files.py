"""The files of a report: one folder per incident, and LESSONS.md beside the runs.

<folder>/0001-step-000312/incident.json     for machines
<folder>/0001-step-000312/postmortem.md     for people
<folder>/0001-step-000312/postmortem.html   the same as a page, with its figures
<folder>/0001-step-000312/verify.toml       its checks, for `trimtab compare --verify`
<folder>/0001-step-000312/incident.svg      the signals around it
<folder>/0001-step-000312/batch.json        the sequences and tokens, if the run kept them

LESSONS.md has one line per lesson. The lines of a run are replaced when it is reported again; those
of other runs, and whatever people write into the file, stay.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from trimtab.core.escaping import escape_markdown
from trimtab.core.jsonable import to_jsonable
from trimtab.core.log import log
from trimtab.core.text import printable
from trimtab.explain.comparison import format_checks
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.verification import verification_checks
from trimtab.journal.batches.batch_report import BatchReport
from trimtab.journal.batches.files import batch_files
from trimtab.journal.directory import RunDirectory, incident_folder_name, incident_folders
from trimtab.journal.files import inside, open_new, read_json, read_regular, replace_file
from trimtab.report.document import to_markdown
from trimtab.report.pages.run_page import POSTMORTEM_FILE, postmortem_page
from trimtab.report.postmortem import INCIDENT_FIGURE, VERIFY_FILE, build_postmortem
from trimtab.report.run_report import RunReport

_MACHINE, _PEOPLE, _BATCH = "incident.json", "postmortem.md", "batch.json"
_FILES = (
    *(_MACHINE, _PEOPLE, _BATCH, VERIFY_FILE),
    *(INCIDENT_FIGURE, POSTMORTEM_FILE),
    "tokens.svg",  # of 0.3
)
LESSONS_FILE = "LESSONS.md"

_LESSONS_HEAD = ["# Lessons", "", "One line per lesson, by `trimtab diagnose RUN --write`.", ""]
_MAX_LESSONS = 20
"""Of one run, those of the most severe incidents."""


def report_folder(out: Path, source: Path) -> Path:
    """Return the folder inside `out` that belongs to one log, whatever others share its name."""
    digest = hashlib.sha256(str(source.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return out / f"{source.stem or source.resolve().stem}-{digest[:8]}"


MAX_INCIDENTS = 1000
"""Incidents of a run that have files, the most severe ones; the others are in the report. Chosen:
nobody reads a thousand post-mortems, and a run directory has a limit."""


def write_incidents(
    report: RunReport, folder: Path, progress: Callable[[int, int], None] | None = None
) -> list[Path]:
    """Write the files of every incident; return the post-mortems.

    Files of an earlier report in the same folder are removed first, so none of its incidents stay.
    Anything that trimtab did not write is kept.
    """
    remove_incidents(folder)
    written = []
    chosen = report.most_severe(MAX_INCIDENTS)
    for incident in chosen:
        written.append(write_incident(folder, incident, report))
        if progress is not None:
            progress(len(written), len(chosen))
    return written


def remove_incidents(folder: Path) -> None:
    """Remove the incidents that an earlier report left in a folder."""
    for old in incident_folders(folder):
        _remove(old)


def _remove(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    # A folder with anything that people added stays.
    if not any(folder.iterdir()):
        folder.rmdir()


def _put(path: Path, text: str) -> None:
    """Write a file into the folder of an incident, and through no link."""
    inside(path.parent.parent, path.parent.name).mkdir(parents=True, exist_ok=True)
    with open_new(path) as file:
        file.write(text.encode("utf-8"))


def write_incident(folder: Path, diagnosis: Diagnosis, report: RunReport) -> Path:
    """Write the files of one incident into its folder inside `folder`; return its post-mortem.

    Its earlier files are replaced, but for those of a batch, which stay if it has none now; other
    incidents are not touched.
    """
    incident = diagnosis.incident
    folder = folder / incident_folder_name(incident.number, incident.onset.step)
    for old in incident_folders(folder.parent):
        # An onset may be dated back when more is known.
        if old.name.startswith(f"{incident.number:04d}-") and old != folder:
            _remove(old)
    if (batch := diagnosis.batch) is not None:
        _put(folder / _BATCH, json.dumps(to_jsonable(batch), allow_nan=False) + "\n")
        if not report.shows_text:  # what trackers get; the text stays in batch.json
            batch = batch.decoded(None)
            diagnosis = dataclasses.replace(diagnosis, batch=batch)
    machine = json.dumps(diagnosis.to_dict(report.packages), indent=1, allow_nan=False)
    _put(folder / _MACHINE, machine + "\n")
    if checks := verification_checks(diagnosis, report.block):
        heading = f"trimtab compare NEW_RUN {printable(report.source)} --verify {VERIFY_FILE}"
        _put(folder / VERIFY_FILE, format_checks(checks, heading))
    else:
        (folder / VERIFY_FILE).unlink(missing_ok=True)
    document = build_postmortem(diagnosis, report)
    postmortem = folder / _PEOPLE
    _put(postmortem, to_markdown(document, with_figures=True))
    try:
        for figure in document.figures:
            _put(folder / figure.file, figure.draw(True))
        _put(folder / POSTMORTEM_FILE, postmortem_page(diagnosis, report))
    except OSError:
        raise
    except Exception:  # the text is written, and the incidents after it must be too
        log.exception("trimtab: no page for incident %d", diagnosis.incident.number)
    return postmortem


def read_batches(run: RunDirectory) -> tuple[tuple[BatchReport, ...], list[str]]:
    """Return what was kept of the batches of each incident, and what could not be read."""
    found, notes = [], []
    # The run itself writes batches/; before 0.4 it wrote into the folders of its incidents.
    files = [*(folder / _BATCH for folder in incident_folders(run.incidents)), *batch_files(run)]
    for file in files:
        try:
            found.append(BatchReport.from_dict(read_json(file)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            notes.append(f"{file.parent.name}/{file.name} cannot be read: {type(error).__name__}")
    return tuple(found), notes


def update_lessons(report: RunReport, folder: Path, run: str) -> Path | None:
    """Write the lessons of a run into the file of its folder; None if nothing changes."""
    file = folder / LESSONS_FILE
    try:
        before = read_regular(file).decode("utf-8").splitlines()
    except FileNotFoundError:
        before = _LESSONS_HEAD
    except ValueError as error:
        raise OSError(f"{file} is not a text: {error}") from error
    end = f" ({escape_markdown(run)})"
    kept = [line for line in before if not (line.startswith("- ") and line.endswith(end))]
    lessons = {found.lesson: found for found in report.by_severity()[:_MAX_LESSONS][::-1]}
    lines = [_lesson(found) + end for found in lessons.values()]
    if kept + lines == before or (not lines and before is _LESSONS_HEAD):
        return None
    replace_file(file, "\n".join([*kept, *lines]) + "\n")
    return file


def _lesson(diagnosis: Diagnosis) -> str:
    step = diagnosis.incident.onset.step
    cause = diagnosis.cause.id if diagnosis.cause else "cause not known"
    return (
        f"- {escape_markdown(diagnosis.lesson)} {escape_markdown(cause)}, "
        f"{diagnosis.incident_class} at step {step}"
    )
