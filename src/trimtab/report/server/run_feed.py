"""RunFeed: one run as its journal grows, for the fleet and for the page of the run."""

import json
import math
import threading
import time
from collections import deque
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.errors import JournalError
from trimtab.core.jsonable import to_jsonable
from trimtab.core.records.rollbacks import ROLLBACK
from trimtab.core.signals import (
    CLOCK,
    DISCARDED,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from trimtab.journal import PIECE_RECORDS, Follower, RunDirectory
from trimtab.journal.exit_request import ExitRequest
from trimtab.report.event_text import INCIDENT
from trimtab.report.pages.charts import PANELS

KEPT_MESSAGES = 400
"""Messages that a browser may have missed and still gets; after more it loads the page again."""

SPARK = 80
"""Values of the small curve in the fleet."""

_MAX_ROWS = 2000
"""Records of one message: of a longer backlog the last ones."""

_NAMES = frozenset(name for panel in PANELS for name in panel.names) | {EVAL_LOSS}
_FAMILIES = tuple(panel.family for panel in PANELS if panel.family and not panel.is_heat)


class RunFeed:
    """What one run has written so far, added up, and the messages for its page."""

    def __init__(self, directory: RunDirectory, name: str) -> None:
        self.directory = directory
        self.name = name
        self._follower = Follower(directory)
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=KEPT_MESSAGES)
        self._lock = threading.Lock()
        self.version = 0
        self.num_records = 0
        self.num_lost = 0
        """Steps that were discarded, not applied or rolled back."""
        self.num_nonfinite = 0
        """Losses in a row, up to the last one, that are not finite."""
        self.last_step = -1
        self.last_tick = -1
        self.latest: dict[str, float] = {}
        self.incidents: dict[int, dict[str, Any]] = {}
        self._losses: list[float | None] = []
        self.error: str | None = None
        """Why the journal cannot be followed, if it cannot."""
        self.next_poll = 0.0
        self.exit: ExitRequest | None = None

    @property
    def ended(self) -> str | None:
        """How the writer ended; None while it runs or if it was killed."""
        return self._follower.ended

    @property
    def damage(self) -> list[str]:
        """What the journal has lost, in sentences."""
        return [damage.sentence for damage in self._follower.damage]

    @property
    def spark(self) -> list[float | None]:
        """The loss in a few values, for a small curve."""
        return [None if v is None else float(f"{v:.4g}") for v in self._losses[-SPARK:]]

    def poll(self) -> bool:
        """Read what is new; whether anything is."""
        was_ended, num_damage = self.ended, len(self._follower.damage)
        num_before, num_events, went_back = self.num_records, 0, False
        try:
            block = self._follower.poll(PIECE_RECORDS)
            while self._follower.has_more:  # a long run, at the start
                went_back |= self._add(block)
                num_events += len(block.events)
                block = self._follower.poll(PIECE_RECORDS)
        except (OSError, ValueError, JournalError) as error:  # shown, and tried again
            changed = self.error != str(error)
            self.error = str(error)
            return changed
        self.error = None
        if self.ended is not None:
            self.exit = ExitRequest.read(self.directory.home)
        went_back |= self._add(block)
        num_new = self.num_records - num_before
        is_new = bool(num_new or num_events or block.events)
        if is_new or self.ended != was_ended or len(self._follower.damage) != num_damage:
            self._send(self._message(block, reload=went_back or num_new > _MAX_ROWS))
            return True
        return False

    def messages_since(self, version: int) -> list[tuple[int, bytes]] | None:
        """The version and JSON of each later change; None if some of them are gone."""
        with self._lock:
            waiting = [message for message in self._messages if message[0] > version]
        is_whole = not waiting or waiting[0][0] == version + 1
        return waiting if is_whole else None

    def close(self) -> None:
        """Close the journal."""
        self._follower.close()

    def _add(self, block: Block) -> bool:
        """Add up records and events; whether the run went back in them."""
        self.num_records += len(block)
        discarded = block.column(DISCARDED)
        self.num_lost += int((discarded.values[discarded.present] > 0).sum())
        went_back = False
        for event in block.events:
            if event.kind == INCIDENT and isinstance(event.facts.get("number"), int):
                self.incidents[event.facts["number"]] = dict(event.facts)
            elif event.kind == ROLLBACK:
                went_back = True
                lost = event.facts.get("steps_lost")
                self.num_lost += lost if isinstance(lost, int) else 0
            elif event.kind == "step not applied":
                self.num_lost += 1
        if len(block):
            went_back |= int(block.step.min()) <= self.last_step
            self.last_step, self.last_tick = int(block.step[-1]), int(block.tick[-1])
            for name in (LOSS, GRAD_NORM, CLOCK, STEP_SECONDS, TOKENS_PER_SECOND):
                column = block.column(name)
                known = column.present if name in (LOSS, GRAD_NORM) else column.finite
                if known.any():
                    self.latest[name] = float(column.values[known][-1])
            self._add_losses(block)
        return went_back

    def _send(self, message: dict[str, Any]) -> None:
        encoded = json.dumps(message, allow_nan=False).encode()
        with self._lock:
            self.version += 1
            self._messages.append((self.version, encoded))

    def _add_losses(self, block: Block) -> None:
        loss = block.column(LOSS)
        values = loss.values[loss.present]
        if not len(values):
            return
        finite = np.flatnonzero(np.isfinite(values))
        trailing = len(values) - 1 - int(finite[-1]) if len(finite) else len(values)
        self.num_nonfinite = trailing + (0 if len(finite) else self.num_nonfinite)
        joined = [*self._losses, *(float(v) if math.isfinite(v) else None for v in values[-4000:])]
        while len(joined) > 2 * SPARK:  # pairs keep their larger value, so that peaks stay
            pairs = zip(joined[::2], joined[1::2], strict=False)
            joined = [None if a is None or b is None else max(a, b) for a, b in pairs]
        self._losses = joined

    def _message(self, block: Block, *, reload: bool) -> dict[str, Any]:
        """The new records as the page of the run draws them."""
        part = block[max(len(block) - _MAX_ROWS, 0) :]
        values: dict[str, list[list[Any]]] = {}
        for name in part.columns:
            if name in _NAMES or name.startswith(_FAMILIES):
                column = part.column(name)
                rows = np.flatnonzero(column.present)
                points = zip(part.step[rows].tolist(), column.values[rows].tolist(), strict=True)
                values[name] = [[s, v if math.isfinite(v) else None] for s, v in points]
        return {
            "tick": self.last_tick,
            "step": self.last_step,
            "records": self.num_records,
            "reload": reload,
            "ended": self.ended,
            "values": values,
            "incidents": [to_jsonable(dict(e.facts)) for e in block.events if e.kind == INCIDENT],
            "sent": time.time(),
        }
