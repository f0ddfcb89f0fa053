"""The view of a live run: the recent losses, the latest values, its incidents."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.core.block import Block
from trimtab.core.incidents import Transition
from trimtab.core.jsonable import to_jsonable
from trimtab.core.signals import (
    CLOCK,
    DISCARDED,
    GRAD_NORM,
    LOSS,
    LR,
    PARAM_NORM,
    TOKENS_PER_SECOND,
    UPDATE_NORM,
)
from trimtab.explain.evidence.check import number
from trimtab.journal.approval import Proposal
from trimtab.report.escaping import printable
from trimtab.report.sparkline import marks, sparkline

KEPT_RECORDS = 2000
"""Records in the curves: in a terminal of 100 columns, one character is 20 records."""

_SHOWN = (LOSS, GRAD_NORM, LR, UPDATE_NORM, PARAM_NORM, TOKENS_PER_SECOND)
_MAX_INCIDENTS = 10


class LiveView:
    """Collects blocks as they are written and draws the current state."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._recent = Block.empty()
        self._num_records = 0
        self._num_discarded = 0
        self._latest: dict[str, float] = {}
        self._incidents: dict[int, dict[str, Any]] = {}
        self.ended: str | None = None
        self.proposal: Proposal | None = None
        """What the run asks a person."""

    def update(self, block: Block) -> None:
        """Add new records."""
        self._num_records += len(block)
        discarded = block.column(DISCARDED)
        self._num_discarded += int((discarded.values[discarded.present] > 0).sum())
        joined = Block.concat([self._recent, block[max(len(block) - KEPT_RECORDS, 0) :]])
        self._recent = joined[max(len(joined) - KEPT_RECORDS, 0) :]
        for name in (*_SHOWN, CLOCK):
            column = block.column(name)
            if column.recorded:
                self._latest[name] = float(column.values[column.present][-1])
        for event in block.events:
            if event.kind == "incident" and isinstance(event.facts.get("number"), int):
                self._incidents[event.facts["number"]] = dict(event.facts)

    def to_dict(self) -> dict[str, Any]:
        """The current state as JSON values."""
        values = {name: value for name, value in self._latest.items() if name in _SHOWN}
        incidents = [self._incidents[number] for number in sorted(self._incidents)]
        return {
            "run": self._source,
            "records": self._num_records,
            "step": int(self._recent.step[-1]) if len(self._recent) else None,
            "discarded": self._num_discarded,
            "values": to_jsonable(values),
            "incidents": to_jsonable(incidents),
            "proposal": to_jsonable(self.proposal),
            "ended": self.ended,
        }

    def draw(self, width: int) -> RenderableType:
        """The current state for a terminal of this width."""
        if not len(self._recent):
            return Text(f"{printable(self._source)}: no records yet")
        parts: list[RenderableType] = [self._heading(), *self._curves(width), self._numbers()]
        if self._incidents:
            parts.append(self._incident_table())
        if self.proposal is not None and self.ended is None:
            parts.append(self._question(self.proposal))
        return Group(*parts)

    def _curves(self, width: int) -> list[Text]:
        """The recent values as wide as the terminal, with the onsets of incidents below them."""
        indent = 10
        room = max(width - indent, 10)
        lines = [
            Text(name.ljust(indent), style="cyan").append(
                sparkline(self._recent.column(name), room), style="default"
            )
            for name in (LOSS, GRAD_NORM)
            if self._recent.column(name).recorded
        ]
        under = marks(list(self._onsets()), len(self._recent), min(len(self._recent), room))
        if under:
            lines.append(Text(" " * indent + under, style="bold yellow"))
        return lines

    def _onsets(self) -> Iterator[tuple[int, str]]:
        """The row and the mark of each onset among the recent records."""
        steps = self._recent.step
        for key, facts in sorted(self._incidents.items()):
            rows = np.flatnonzero(steps == facts.get("onset"))
            if len(rows):
                yield int(rows[-1]), f"^{key}"

    def _heading(self) -> Text:
        text = Text(printable(self._source), style="bold")
        text.append(
            f"  step {self._recent.step[-1]:,}, {self._num_records:,} records", style="not bold"
        )
        if self._num_discarded:
            text.append(f", {self._num_discarded:,} discarded", style="yellow")
        if self.ended is not None:
            text.append(f", ended: {printable(self.ended)}", style="bold yellow")
        elif CLOCK in self._latest:
            age = max(time.time() - self._latest[CLOCK], 0.0)
            text.append(f", last record {age:.0f} s ago", style="red" if age > 60 else "dim")
        return text

    def _question(self, proposal: Proposal) -> Text:
        left = max(proposal.expires - time.time(), 0.0)
        text = Text(f"proposed: {printable(proposal.action)}", style="bold yellow")
        text.append(f"\n  why: {printable(proposal.reason)}", style="not bold")
        text.append(
            f"\n  trimtab approve {printable(self._source)}, or decline; without an answer in "
            f"{left:.0f} s: {printable(proposal.default)}",
            style="not bold",
        )
        return text

    def _numbers(self) -> Text:
        text = Text()
        for name in _SHOWN:
            if name in self._latest:
                text.append(f"{name} ", style="dim").append(f"{number(self._latest[name])}   ")
        return text

    def _incident_table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("#", "onset", "class", "state", "likely cause", "symptoms"):
            table.add_column(name)
        for facts in list(self._incidents.values())[-_MAX_INCIDENTS:]:
            symptoms = facts.get("symptoms") or []
            table.add_row(
                *(
                    printable(str(cell))
                    for cell in (
                        facts["number"],
                        facts.get("onset", ""),
                        facts.get("incident_class") or _open_or_rolled_back(facts),
                        facts.get("transition", ""),
                        facts.get("cause") or "not known",
                        ", ".join(map(str, symptoms)) if isinstance(symptoms, list) else symptoms,
                    )
                )
            )
        return table


def _open_or_rolled_back(facts: Mapping[str, Any]) -> str:
    is_over = facts.get("transition") == Transition.ROLLED_BACK
    return str(Transition.ROLLED_BACK) if is_over else "open"
