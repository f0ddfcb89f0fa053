"""What a sink refuses is split until the refused points are alone; the rest gets through.

Without this, one name that a tracker does not accept would block everything after it for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.sink import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a sink refused for good."""

    what: str
    """One signal, or one event, in a few words."""
    points: int
    step: int
    """The first step."""
    reason: str
    is_repeated: bool = False
    """Whether it is a signal that is left out since an earlier refusal: it is only counted."""


class Delivery:
    """Sends blocks to one sink, without the signals that it has refused altogether."""

    def __init__(self, send: Callable[[Block], None]) -> None:
        self._send = send
        self._left_out: set[str] = set()

    def deliver(self, block: Block) -> list[Refusal]:
        """Send a block; what was refused. Raises what the sink raises otherwise."""
        kept = {n: column for n, column in block.columns.items() if n not in self._left_out}
        repeated = [
            Refusal(what=name, points=points, step=0, reason="", is_repeated=True)
            for name in block.columns.keys() - kept.keys()
            if (points := int(block.columns[name].present.sum()))
        ]
        block = replace(block, columns=kept)
        try:
            self._send(block)
        except Refused as error:
            return repeated + self._split(block, error)
        return repeated

    def _split(self, block: Block, error: Refused) -> list[Refusal]:
        parts: list[Block] = []
        if len(block):
            parts.append(replace(block, events=()))
        parts += [replace(Block.empty(), events=(event,)) for event in block.events]
        refusals: list[Refusal] = []
        for part in parts:
            if not len(part):
                refusals += self._send_event(part, error if len(parts) == 1 else None)
            elif len(parts) == 1:
                refusals += self._split_signals(part, error)
            else:
                refusals += self._send_part(part)
        return refusals

    def _send_part(self, part: Block) -> list[Refusal]:
        try:
            self._send(part)
        except Refused as error:
            return self._split_signals(part, error)
        return []

    def _send_event(self, part: Block, error: Refused | None) -> list[Refusal]:
        event = part.events[0]
        try:
            if error is None:
                self._send(part)
        except Refused as refused:
            error = refused
        if error is None:
            return []
        what = f"the event {event.kind!r}"
        return [Refusal(what=what, points=1, step=event.step, reason=str(error))]

    def _split_signals(self, part: Block, error: Refused) -> list[Refusal]:
        names = [name for name in part.columns if name != signals.CLOCK]
        if len(names) <= 1:
            return self._split_rows(part, names, error)
        half = len(names) // 2
        refusals: list[Refusal] = []
        for group in (names[:half], names[half:]):
            columns = {name: part.columns[name] for name in (*group, signals.CLOCK)}
            refusals += self._send_part(replace(part, columns=columns))
        return refusals

    def _split_rows(self, part: Block, names: list[str], error: Refused) -> list[Refusal]:
        """Find the values of one signal that are refused; leave it out if all are."""
        if not names:
            return []
        present = int(part.columns[names[0]].present.sum())
        refused, reason = self._count_refused(part, names[0], error)
        if present and refused == present:
            self._left_out.add(names[0])
        what = f"the signal {names[0]!r}"
        if names[0] in self._left_out:
            what += ", which is left out from here on"
        step = int(part.step[0])
        return [Refusal(what=what, points=refused, step=step, reason=reason)]

    def _count_refused(self, part: Block, name: str, error: Refused) -> tuple[int, str]:
        present = int(part.columns[name].present.sum())
        if present <= 1:
            return present, str(error)
        refused, reason = 0, str(error)
        half = len(part) // 2
        for rows in (slice(0, half), slice(half, len(part))):
            piece = part[rows]
            if not piece.columns[name].recorded:
                continue
            try:
                self._send(piece)
            except Refused as again:
                count, reason = self._count_refused(piece, name, again)
                refused += count
        return refused, reason
