"""TensorBoard event files: TFRecord files of protobuf events, one or several to a run.

Read without tensorboard or protobuf. Every scalar is read: TensorBoard's own reader keeps a
sample of 10,000 for each tag.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trimtab.core.errors import UnreadableLog
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table
from trimtab.readers.trackers.hf_losses import is_by_hf, restore_hf_losses
from trimtab.readers.trackers.points import Points
from trimtab.readers.trackers.tensorboard.events import EventReader
from trimtab.readers.trackers.tensorboard.tfrecord import RecordFile, sound_headers

_MARK = b"brain.Event:"
_HF_PREFIX = "train/"
_WRITTEN = re.compile(r"tfevents\.(\d+)")


def read(path: Path, progress: Progress) -> Table:
    """Read an event file, or all event files of a folder as one run."""
    files = sorted(_event_files(path.iterdir()), key=_written) if path.is_dir() else [path]
    total = sum(file.stat().st_size for file in files)
    log = _Log()
    done = 0
    for file in files:
        log.add(file, _part_of(progress, done, total))
        done += file.stat().st_size
    return log.finish(path)


def recognises(head: bytes) -> bool:
    """Whether these bytes begin with a length and its checksum, or with the mark of events."""
    if _MARK in head[:64]:  # the first length may be damaged
        return True
    return len(head) >= 12 and bool(sound_headers(head[:12], np.array([0])).all())


def runs_among(files: Sequence[Path]) -> list[Path]:
    """The folders with event files in them, each a run, the newest first."""
    newest = newest_first(_event_files(files))
    return list(dict.fromkeys(file.parent for file in newest))


class _Log:
    """Collects the events of a run into a table."""

    def __init__(self) -> None:
        self._points = Points()
        self._events = EventReader(self._points)
        self._files: list[RecordFile] = []
        self._latest = 0.0
        self._overlap = False

    def add(self, path: Path, progress: Progress) -> None:
        """Take all events of a file."""
        file = RecordFile(path, progress)
        self._files.append(file)
        first = len(self._points)
        for records in file.records():
            self._events.add(records)
        times = self._points.times_from(first)
        times = times[np.isfinite(times)]
        if len(times):
            self._overlap |= float(times.min()) < self._latest
            self._latest = max(self._latest, float(times.max()))

    def finish(self, path: Path) -> Table:
        """The table; raises UnreadableLog if there is no scalar in it."""
        notes = self._notes()
        if not len(self._points):
            found = " ".join(notes) or "nothing is damaged"
            raise UnreadableLog(
                f"{path} holds no scalar that can be read ({found}); check that the run logged any"
            )
        table = self._points.to_table(by_time=self._overlap)
        for note in notes:
            table.add_note(note)
        if is_by_hf(table, _HF_PREFIX):
            restore_hf_losses(table, _HF_PREFIX)
        return table

    def _notes(self) -> list[str]:
        """What had to be left out."""
        files = self._files
        bad = sum(file.num_bad for file in files) + self._events.num_malformed
        counts = {
            "Records that are not what was written (by their checksum), left out": bad,
            "Damaged places, skipped": sum(file.num_gaps for file in files),
            "Records too long to hold scalars, left out": sum(file.num_long for file in files),
            "Last record cut off, left out": sum(file.is_cut for file in files),
        }
        notes = [f"{sentence}: {count}." for sentence, count in counts.items() if count]
        if self._overlap:
            notes.append("Several event files were written at the same time; ordered by the clock.")
        return notes


def _part_of(progress: Progress, before: int, total: int) -> Progress:
    """The progress within one of several files."""
    return lambda done, _: progress(before + done, total)


def _event_files(files: Iterable[Path]) -> list[Path]:
    return [file for file in files if "tfevents" in file.name and file.is_file()]


def _written(path: Path) -> tuple[int, str]:
    """When a file was begun, by its name."""
    found = _WRITTEN.search(path.name)
    return int(found[1][:18]) if found else 0, path.name


TENSORBOARD = Format(
    name="tensorboard",
    description="TensorBoard event files",
    suffixes=(),
    matches=recognises,
    load=read,
    binary=True,
    logs_among=runs_among,
)
"""The format."""
