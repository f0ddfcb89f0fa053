"""observer.jsonl: what the observer of a run says about it, one line of JSON for each change.

    {"kind": "incident", "tick": 312, "step": 312, "facts": {"transition": "opened", ...}}
    {"kind": "run status", "tick": 1498, "step": 1497, "facts": {"status": "died", ...}}

A line follows from the journal up to its tick, so an observer that was killed and starts again says
the same: what the file has already is not written a second time. Everything that shows a run reads
the incidents from here; nothing in the training process does.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from trimtab.core.block import Event
from trimtab.core.incidents import IncidentClass, IncidentTransition, Transition
from trimtab.core.jsonable import to_jsonable
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import open_regular
from trimtab.journal.lines import is_int64

OBSERVER_FILE = "observer.jsonl"

INCIDENT = "incident"
"""The kind of the lines about an incident; runs before 0.4 have events of this kind in their
journal."""

REPORT_WRITTEN = "report written"
"""The kind of the line that follows the status of a run that is over, once its files are there."""

MAX_BYTES = 2**28
"""Nothing behind this many bytes is read. Chosen: a line has 1 kB, and a run at most thousands."""

_MAX_LINE = 2**20
_CLASSES, _TRANSITIONS = frozenset(IncidentClass), frozenset(Transition)


def encode_news(event: Event) -> str:
    """Return the line of an event, without a newline."""
    values = {"kind": event.kind, "tick": event.tick, "step": event.step, "facts": event.facts}
    return json.dumps(to_jsonable(values), allow_nan=False, separators=(",", ":"))


class NewsReader:
    """Delivers each line of observer.jsonl once, in order, as it is written."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._offset = 0
        self._rest = b""

    def poll(self) -> list[Event]:
        """Return the news since the last call; what is no line of an observer is left out."""
        try:
            with open_regular(self._run.home / OBSERVER_FILE) as file:
                data = os.pread(file.fileno(), MAX_BYTES - self._offset, self._offset)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for event in map(_decode, lines) if event is not None]


def read_news(run: RunDirectory) -> list[Event]:
    return NewsReader(run).poll()


def transitions_in(events: Iterable[Event]) -> list[IncidentTransition]:
    """Return what changed about the incidents of a run, as its observer has said it."""
    found: list[IncidentTransition] = []
    classes: dict[int, IncidentClass] = {}
    for event in events:
        facts, number = event.facts, event.facts.get("number")
        named, kind = str(facts.get("incident_class")), str(facts.get("transition"))
        # A dismissal has no class, a status no number, and a later version may say more.
        if type(number) is not int or named not in _CLASSES or kind not in _TRANSITIONS:
            continue
        before, after = classes.get(number), IncidentClass(named)
        classes[number] = after
        transition = Transition(kind)
        if transition is Transition.CLASSIFIED and before is after:
            continue  # said once more at the end
        # An event stands before the record that comes next.
        at = {"number": number, "tick": event.tick - 1, "step": event.step}
        found.append(IncidentTransition(transition=transition, before=before, after=after, **at))
    return found


def _decode(line: bytes) -> Event | None:
    if len(line) > _MAX_LINE:
        return None
    try:
        values: Any = json.loads(line)
        kind, facts = values["kind"], values["facts"]
        axes = values["tick"], values["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(kind, str) or not isinstance(facts, Mapping) or not all(map(is_int64, axes)):
        return None
    return Event(kind=kind, tick=axes[0], step=axes[1], facts=dict(facts))
