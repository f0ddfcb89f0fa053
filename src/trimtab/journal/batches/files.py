"""batches/: what a run has kept of the batches around its bad steps, one small file for each."""

import contextlib
import json
import re
from pathlib import Path

from trimtab.core.jsonable import to_jsonable
from trimtab.journal.batches.batch_report import BatchReport
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import inside, replace_file

MAX_FILES = 256
"""Batch reports that a run directory keeps, the newest. Chosen: a run directory has a limit."""

_NAME = re.compile(r"[0-9]{10,19}\.json")


def batch_files(run: RunDirectory) -> list[Path]:
    """Return the files in the order of their onsets; links are left out."""
    try:
        paths = sorted(run.folder("batches").iterdir())
    except OSError:
        return []
    return [path for path in paths if _NAME.fullmatch(path.name) and not path.is_symlink()]


def write_batch(run: RunDirectory, report: BatchReport) -> None:
    """Write a report under its onset, in place of an earlier one; the oldest ones go."""
    folder = inside(run.root, "trimtab", "batches")
    content = json.dumps(to_jsonable(report), allow_nan=False)
    replace_file(folder / f"{report.onset_tick:010d}.json", content + "\n")
    for old in batch_files(run)[:-MAX_FILES]:
        with contextlib.suppress(OSError):
            old.unlink()
