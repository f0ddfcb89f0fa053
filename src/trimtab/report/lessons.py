"""LESSONS.md: what the runs of a folder have taught, one line per lesson.

The lines of a run are replaced when it is reported again; those of other runs, and whatever people
write into the file, stay.
"""

from pathlib import Path

from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal.atomic_file import replace_file
from trimtab.report.escaping import escape_markdown
from trimtab.report.run_report import RunReport

NAME = "LESSONS.md"

_HEAD = ["# Lessons", "", "One line per lesson, written by `trimtab report RUN`.", ""]
_MAX_LESSONS = 20
"""Of one run, those of the most severe incidents."""


def update_lessons(report: RunReport, folder: Path, run: str) -> Path | None:
    """Write the lessons of a run into the file of its folder; None if nothing changes."""
    file = folder / NAME
    before = file.read_text(encoding="utf-8").splitlines() if file.exists() else _HEAD
    end = f" ({escape_markdown(run)})"
    kept = [line for line in before if not (line.startswith("- ") and line.endswith(end))]
    lessons = {found.lesson: found for found in report.by_severity()[:_MAX_LESSONS][::-1]}
    lines = [_line(found) + end for found in lessons.values()]
    if kept + lines == before or (not lines and not file.exists()):
        return None
    replace_file(file, "\n".join([*kept, *lines]) + "\n")
    return file


def _line(diagnosis: Diagnosis) -> str:
    step = diagnosis.incident.onset.step
    cause = diagnosis.cause.id if diagnosis.cause else "cause not known"
    return (
        f"- {escape_markdown(diagnosis.lesson)} {escape_markdown(cause)}, {diagnosis.outcome} at "
        f"step {step}"
    )
