"""People's notes about a run, added from any process while the run writes its journal.

They are in a separate file, `notes.log`, in the journal's line format: only the run itself may
write the journal, and anyone may add a note.
"""

import getpass
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from trimtab.core.block import Event
from trimtab.core.errors import JournalError
from trimtab.core.events import NOTE
from trimtab.core.incidents import Transition
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import open_regular, read_regular
from trimtab.journal.follow import PIECE_RECORDS, Follower
from trimtab.journal.lines import decode_line, encode_line, is_int64
from trimtab.journal.news import INCIDENT

MAX_NOTE_CHARS = 10_000
"""One write of this many bytes to a local file is not interleaved with another."""


def add_note(
    run: RunDirectory, text: str, incident: int | None = None, *, dismiss: int | None = None
) -> int:
    """Add a note of this user at the current step of the run; returns the step.

    `incident` is the number of the incident that it is a follow-up of, `dismiss` that of one which
    needs nothing.
    """
    if len(text) > MAX_NOTE_CHARS:
        raise JournalError(f"a note has at most {MAX_NOTE_CHARS} characters, got {len(text)}")
    tick = step = 0
    with Follower(run) as follower:
        while True:
            block = follower.poll(PIECE_RECORDS)
            if len(block):
                tick, step = int(block.tick[-1]) + 1, int(block.step[-1])
            if not follower.has_more:
                break
    entry: dict[str, Any] = {
        "tick": tick,
        "step": step,
        "text": text,
        "clock": time.time(),
        "author": _author(),
    }
    entry |= {} if incident is None else {"incident": incident}
    entry |= {} if dismiss is None else {"dismiss": dismiss}
    line = encode_line(entry)
    try:
        with open_regular(run.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            file.write(line)
    except OSError as error:
        raise JournalError(f"{run.notes} cannot be written: {error}") from error
    return step


def _author() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user id has no name
        return "unknown"


def dismissals(events: Iterable[Event]) -> Iterator[Event]:
    """Yield each dismissal of an incident among notes, as the observer says it."""
    for event in events:
        number = event.facts.get("dismiss")
        if event.kind == NOTE and type(number) is int:
            # From a file that anyone may write: the author and the text may be anything.
            facts = {
                "transition": Transition.DISMISSED,
                "number": number,
                "dismissed": str(event.facts.get("author") or "unknown"),
                "text": str(event.facts.get("text") or ""),
            }
            yield Event(kind=INCIDENT, tick=event.tick, step=event.step, facts=facts)


def read_notes(run: RunDirectory) -> list[Event]:
    """Return the notes as events, by tick; a damaged line is left out."""
    try:
        lines = read_regular(run.notes).splitlines()
    except OSError:
        return []
    events = []
    for entry in map(decode_line, lines):
        if entry is not None and all(is_int64(entry.get(axis)) for axis in ("tick", "step")):
            facts = {key: value for key, value in entry.items() if key not in ("tick", "step")}
            events.append(Event(kind=NOTE, tick=entry["tick"], step=entry["step"], facts=facts))
    return sorted(events, key=lambda event: event.tick)
