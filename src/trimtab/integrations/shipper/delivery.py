"""Delivery: what a sink refuses is halved until the refused points are alone; the rest arrives.

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
    """One signal, or one kind of event, in a few words."""
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
        """Send a block; return what was refused. Raises what the sink raises otherwise."""
        num_values = {name: int(column.present.sum()) for name, column in block.columns.items()}
        refusals = [
            Refusal(what=name, points=num_values[name], step=0, reason="", is_repeated=True)
            for name in self._left_out
            if num_values.get(name)
        ]
        kept = {n: column for n, column in block.columns.items() if n not in self._left_out}
        found: dict[str, Refusal] = {}
        for name, refusal in self._send_halves(replace(block, columns=kept)):
            points = refusal.points + (found[name].points if name in found else 0)
            found[name] = replace(found.get(name, refusal), points=points)
        for name, refusal in found.items():
            if refusal.points == num_values.get(name):
                self._left_out.add(name)
                refusal = replace(refusal, what=f"{refusal.what}, which is left out from here on")
            refusals.append(refusal)
        return refusals

    def _send_halves(self, part: Block) -> list[tuple[str, Refusal]]:
        """Send a part, in halves if it is refused; return single values and events, by name."""
        try:
            self._send(part)
        except Refused as error:
            halves = _halves(part)
            if halves:
                return [found for half in halves for found in self._send_halves(half)]
            if part.events:
                event, name = part.events[0], f"the event {part.events[0].kind!r}"
                return [(name, Refusal(what=name, points=1, step=event.step, reason=str(error)))]
            for name in _names(part):  # one, or none beside the clock
                what, step = f"the signal {name!r}", int(part.step[0])
                points = int(part.columns[name].present.sum())
                return [(name, Refusal(what=what, points=points, step=step, reason=str(error)))]
        return []


def _halves(part: Block) -> list[Block]:
    """Split a part by events, then by signals, then by rows; nothing if it is one value."""
    names = _names(part)
    if part.events and len(part):
        return [replace(part, events=()), replace(Block.empty(), events=part.events)]
    if part.events:
        half = len(part.events) // 2
        events = (part.events[:half], part.events[half:]) if half else ()
        return [replace(part, events=some) for some in events]
    if len(names) > 1:
        half = len(names) // 2
        groups = ({*names[:half], signals.CLOCK}, {*names[half:], signals.CLOCK})
        columns = [{n: c for n, c in part.columns.items() if n in group} for group in groups]
        return [replace(part, columns=some) for some in columns]
    if names and part.columns[names[0]].present.sum() > 1:
        half = len(part) // 2
        return [rows for rows in (part[:half], part[half:]) if rows.columns[names[0]].recorded]
    return []


def _names(part: Block) -> list[str]:
    return [name for name in part.columns if name != signals.CLOCK]
