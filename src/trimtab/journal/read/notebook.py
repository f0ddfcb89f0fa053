"""Notebook: what people write down about a run, from any process, while the run writes its journal.

A file of its own beside the journal, `notes.log`, in the journal's line format: only the run itself
may write the journal, and anybody may add a note.
"""

import os
import time

from trimtab.core.block import Event
from trimtab.core.errors import JournalError
from trimtab.journal.directory import RunDirectory
from trimtab.journal.format.lines import decode, encode
from trimtab.journal.read.follow import Follower

NOTE = "note"
LONGEST_NOTE = 10_000
"""Characters; one write of so many bytes to a local file is not torn by another."""


def add_note(run: RunDirectory, text: str) -> int:
    """Write a note at the step where the run is now, which is returned."""
    if len(text) > LONGEST_NOTE:
        raise JournalError(f"a note has at most {LONGEST_NOTE} characters, got {len(text)}")
    with Follower(run) as follower:
        block = follower.poll()
    tick, step = (int(block.tick[-1]) + 1, int(block.step[-1])) if len(block) else (0, 0)
    line = encode({"tick": tick, "step": step, "text": text, "clock": time.time()})
    try:
        descriptor = os.open(run.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise JournalError(f"{run.notes} cannot be written: {error}") from error
    return step


def read_notes(run: RunDirectory) -> list[Event]:
    """The notes as events, by tick; a damaged line is left out."""
    try:
        lines = run.notes.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for entry in map(decode, lines):
        if entry is not None and all(isinstance(entry.get(axis), int) for axis in ("tick", "step")):
            facts = {key: value for key, value in entry.items() if key not in ("tick", "step")}
            events.append(Event(kind=NOTE, tick=entry["tick"], step=entry["step"], facts=facts))
    return sorted(events, key=lambda event: event.tick)
