"""RunFeed: a run in the fleet: its line there, and the messages for its page."""

import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trimtab.core.block import Block, Event
from trimtab.core.errors import JournalError
from trimtab.core.incidents import IncidentClass, Transition, symptoms_text
from trimtab.core.jsonable import to_jsonable
from trimtab.core.signals import CLOCK, EVAL_LOSS, LOSS, TOKENS_PER_SECOND
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.core.text import clause, counted, digits
from trimtab.journal import RunDirectory, RunTotals
from trimtab.journal.exit_request import ExitRequest
from trimtab.journal.news import INCIDENT
from trimtab.journal.reader import STOPPED_BY_HAND
from trimtab.observe.observed_run import ObservedRun
from trimtab.observe.run_stream import RunStream
from trimtab.report.pages.run_charts import PANELS

KEPT_MESSAGES = 400
"""Messages that a browser may have missed and still gets; after more it loads the page again."""

SPARK = 80
"""Values of the small curve in the fleet."""

ORDER = ("alarm", "silent", "damaged", "watch", "ended, harmed", "running", "stopped", "ended")
"""The states of a run in the fleet: who needs attention first."""

_MAX_ROWS = 2000
"""Records of one message: of a longer backlog the last ones."""

_NAMES = frozenset(name for panel in PANELS for name in panel.names) | {EVAL_LOSS}
_FAMILIES = tuple(panel.family for panel in PANELS if panel.family and not panel.is_heat)

_RUINED = (IncidentClass.DIVERGENT, IncidentClass.COLLAPSED, IncidentClass.DEAD)
"""Incidents after which nothing is left of a run, however it ended."""

_LOST = (IncidentClass.DIVERGENT, IncidentClass.LINGERING)
"""Classes that needed an act in runs before 0.4, whose incidents do not say so."""

_BAD_ENDS = ("raised", "could not start")
"""How an end begins that its loop did not want."""


POLL_SECONDS = 0.25
IDLE_POLL_SECONDS, ENDED_POLL_SECONDS = 1.0, 30.0
"""The longest time between two looks at a run in which nothing happens, and at one that is over: it
may be resumed."""


class PollTimes:
    """When a run is looked at next: the longer nothing has happened, the later."""

    def __init__(self) -> None:
        self._wait = self._next = 0.0

    def is_due(self, clock: float) -> bool:
        return clock >= self._next

    def update(self, clock: float, *, has_changed: bool, is_over: bool) -> None:
        longest = ENDED_POLL_SECONDS if is_over else IDLE_POLL_SECONDS
        self._wait = 0.0 if has_changed else min(2 * self._wait + POLL_SECONDS, longest)
        self._next = clock + self._wait


class RunFeed:
    """What one run has written so far, added up, and the messages for its page."""

    def __init__(self, directory: RunDirectory, name: str) -> None:
        self.directory = directory
        self.name = name
        self.observed = ObservedRun(directory)
        self.stream = RunStream(directory)
        self.times = PollTimes()
        self.line: dict[str, Any] = {}
        """The line of the run in the fleet."""
        self.line_version = -1
        """The version of the fleet in which the line last changed."""
        self.version = 0
        """Counts up with every message."""
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=KEPT_MESSAGES)
        self._lock = threading.Lock()
        self._losses: list[float | None] = []
        self.error: str | None = None
        """Why the journal cannot be followed, if it cannot."""
        self.events: list[Event] = []
        """What the last call of `poll` has found."""
        self._exit: ExitRequest | None = None

    @property
    def totals(self) -> RunTotals:
        return self.stream.totals

    @property
    def ended(self) -> str | None:
        """How the writer ended; None while it runs or if it was killed."""
        return self.stream.ended

    def poll(self, *, judges: bool = True) -> bool:
        """Judge and read what is new, or only read it; return whether anything is."""
        has_judged = judges and self.observed.poll()
        stream, totals = self.stream, self.totals
        was = (self.ended, stream.standing, len(stream.damage), totals.num_records)
        events: list[Event] = []
        went_back, block = False, Block.empty()
        try:
            while True:  # a long run comes in pieces, at the start
                block = stream.poll()
                went_back |= stream.went_back
                events += block.events
                self._add_losses(block)
                if not stream.has_more:
                    break
        except (OSError, ValueError, JournalError) as error:  # shown, and tried again
            changed = self.error != str(error)
            self.error = str(error)
            return changed
        self.error, self.events = None, events
        if self.ended is not None:
            self._exit = ExitRequest.read(self.directory.home)
        is_new = (self.ended, stream.standing, len(stream.damage), totals.num_records) != was
        if not events and not is_new:
            return has_judged
        reload = went_back or totals.num_records - was[-1] > _MAX_ROWS
        self._send(self._message(replace(block, events=tuple(events)), reload=reload))
        return True

    def messages_since(self, version: int) -> list[tuple[int, bytes]] | None:
        """Return the version and JSON of each later change; None if some of them are gone."""
        with self._lock:
            waiting = [message for message in self._messages if message[0] > version]
        is_whole = not waiting or waiting[0][0] == version + 1
        return waiting if is_whole else None

    def close(self) -> None:
        self.stream.close()
        self.observed.close()

    def _add_losses(self, block: Block) -> None:
        loss = block.column(LOSS)
        values = loss.values[loss.present][-4000:]
        joined = [*self._losses, *(float(v) if math.isfinite(v) else None for v in values)]
        while len(joined) > 2 * SPARK:  # pairs keep their larger value, so that peaks stay
            pairs = zip(joined[::2], joined[1::2], strict=False)
            joined = [None if a is None or b is None else max(a, b) for a, b in pairs]
        self._losses = joined

    def _send(self, message: dict[str, Any]) -> None:
        encoded = json.dumps(message, allow_nan=False).encode()
        with self._lock:
            self.version += 1
            self._messages.append((self.version, encoded))

    def _message(self, block: Block, *, reload: bool) -> dict[str, Any]:
        """Return the new records as the page of the run draws them."""
        part = block[max(len(block) - _MAX_ROWS, 0) :]
        values: dict[str, list[list[Any]]] = {}
        for name in part.columns:
            if name in _NAMES or name.startswith(_FAMILIES):
                column = part.column(name)
                rows = np.flatnonzero(column.present)
                points = zip(part.step[rows].tolist(), column.values[rows].tolist(), strict=True)
                values[name] = [[s, v if math.isfinite(v) else None] for s, v in points]
        return {
            "tick": self.totals.last_tick,
            "step": self.totals.last_step,
            "records": self.totals.num_records,
            "reload": reload,
            "ended": self.ended,
            "values": values,
            "incidents": [
                {**to_jsonable(dict(event.facts)), "said": incident_text(event.facts)}
                for event in block.events
                if event.kind == INCIDENT
            ],
            "sent": time.time(),
        }

    # The line of the run in the fleet

    def summarize(self, id: str, now: float) -> dict[str, Any]:
        """Return the line of the run in the fleet as JSON values."""
        totals, latest = self.totals, self.totals.latest
        open_ones = [facts for facts in totals.incidents.values() if is_open(facts)]
        state, why = self._state(open_ones, now)
        speed = latest.get(TOKENS_PER_SECOND)
        return {
            "id": id,
            "name": self.name,
            "state": state,
            "order": ORDER.index(state),
            "why": why,
            "step": totals.last_step if totals.num_records else None,
            "loss": digits(latest[LOSS]) if LOSS in latest else "",
            "open": len(open_ones),
            "incidents": len(totals.incidents),
            "speed": "" if speed is None else f"{speed:,.0f}",
            "clock": latest.get(CLOCK),
            "spark": [None if v is None else float(f"{v:.4g}") for v in self._losses[-SPARK:]],
        }

    def state_line(self) -> dict[str, Any]:
        """Return how the run stands, for a log of all runs."""
        shown = self.summarize("", time.time())
        why = f": {shown['why']}" if shown["why"] else ""
        text = f"{shown['state']}{why}; {counted(shown['incidents'], 'incident')}"
        return {"kind": "state", "step": shown["step"], "text": text}

    def news_lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the last look has found, for a log of all runs."""
        for event in self.events:
            line = {"kind": event.kind, "step": event.step}
            if event.kind == RUN_STATUS:
                status, how = event.facts.get("status"), event.facts.get("how")
                yield {**line, "text": f"{status}: {how}" if how else f"{status}"}
            elif event.kind == INCIDENT:
                facts = self.totals.incidents.get(event.facts.get("number", 0), event.facts)
                head = f"incident {facts.get('number')} {event.facts.get('transition')}"
                yield {**line, "text": f"{head}: {incident_text(facts)}"}

    def _state(self, open_ones: list[dict[str, Any]], now: float) -> tuple[str, str]:
        """Return one of ORDER, and why."""
        totals, ended, stream = self.totals, self.ended, self.stream
        if self.error is not None:
            return "alarm", f"its journal cannot be read: {self.error}"
        if self._exit is not None and ended is not None:
            return "alarm", f"has ended itself: {self._exit.reason}"
        if ended is not None and ended.startswith(_BAD_ENDS) and ended not in STOPPED_BY_HAND:
            return "alarm", f"ended: {ended}"
        if stream.standing.status is RunStatus.DIED:
            return "alarm", f"died: {stream.standing.how}"
        severe = [facts for facts in open_ones if _needs_act(facts)]
        if ended is None and open_ones:
            return ("alarm" if severe else "watch"), incident_text((severe or open_ones)[-1])
        if totals.num_nonfinite > 1:  # a single one may be a discarded step
            lost = f"the last {totals.num_nonfinite:,} losses are not finite"
            return "alarm", incident_text(severe[-1]) if severe else lost
        silent = totals.seconds_silent(now)
        status = totals.status(ended, silent)
        if status is RunStatus.STALLED:
            return "silent", f"no record for {age_text(silent)}; no end was written"
        if stream.damage:
            return "damaged", stream.damage[0].sentence
        ruined = [facts for facts in severe if facts.get("incident_class") in _RUINED]
        if ruined:
            return "alarm", incident_text(ruined[-1])
        if ended in STOPPED_BY_HAND and not severe:
            return "stopped", "by hand"
        if ended is not None:
            how = "" if ended == "closed" else ended  # the usual end needs no reason
            return ("ended, harmed", incident_text(severe[-1])) if severe else ("ended", how)
        return "running", ""


def is_open(facts: Mapping[str, Any]) -> bool:
    """Return whether an incident is not dismissed, and not over or left for a person to act on.

    One that needs nothing is not open, even where a run ended before the incident could be closed.
    """
    is_over = facts.get("transition") == Transition.CLOSED and not _needs_act(facts)
    return not (is_over or facts.get("tone") == "good" or facts.get("dismissed"))


def _needs_act(facts: Mapping[str, Any]) -> bool:
    if "tone" in facts:
        return bool(facts["tone"] == "alarm")
    is_over = facts.get("transition") == Transition.CLOSED
    return facts.get("incident_class") in _LOST and not is_over


def incident_text(facts: Mapping[str, Any]) -> str:
    """Return what an incident is and what to do, from what its observer said of it."""
    symptoms = facts.get("symptoms")
    what = symptoms_text(map(str, symptoms)) if isinstance(symptoms, list) else ""
    kind = facts.get("incident_class") or IncidentClass.OPEN
    parts = [f"{what or 'incident'} since step {facts.get('onset')}, {kind}"]
    if facts.get("dismissed"):
        parts.append(f"dismissed by {facts['dismissed']}: {facts.get('text')}")
    elif facts.get("action"):
        parts.append(f"do: {clause(str(facts['action']))}")
    return "; ".join([*parts, str(facts["cause"])] if facts.get("cause") else parts)


def age_text(seconds: float) -> str:
    """Return a time in the largest unit that fits, such as "2.5 h"."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
