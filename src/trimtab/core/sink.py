"""Sink: where the records and events of a run are sent, such as a tracker. An extension point.

A sink runs in the observer, a process of its own (`trimtab.observe`), never in the training
process: it may import what it needs, block and crash. An installed package offers one as
an entry point of the group `trimtab.sinks`: a class without required arguments. It is used only if
it is named: the setting `ship.to = ["name"]` or `trimtab observe RUN --to name`.

    begin(run, memory)   once, before anything is sent; again after it raised
    send(block)          what is new, in order; again with the same block after it raised
    poll()               about twice a second, for what is due by the clock
    finish(status)       the run has ended or died, and everything was sent
    close()              the shipper ends

What is sent twice must not count twice: the shipper ends at any moment, by SIGKILL too, and sends
everything after its last saved position again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trimtab.core.block import Block


class Refused(Exception):
    """What was sent will never be accepted; the shipper splits it, and drops what is refused alone.

    Any other exception means that sending the same again may help.
    """


class RunStatus(StrEnum):
    """How a run stands, as far as its journal and its process tell."""

    RUNNING = "running"
    STALLED = "stalled"
    """No record for ten of its steps and for a time: 120 s on pages and in the terminal,
    `ship.stall_seconds` for trackers and alerts. Its process may be alive."""
    DIED = "died"
    """Its process is gone and has not ended the journal."""
    ENDED = "ended"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come, unless the run is resumed."""
        return self in (RunStatus.DIED, RunStatus.ENDED)


def parse_status(value: Any) -> RunStatus:
    """Return a status from a file; that of a run which trains if it is none."""
    try:
        return RunStatus(value)
    except ValueError:
        return RunStatus.RUNNING


GUARD_CLOSED = b"closed"
"""What a guard writes to its observer when it is closed; the end of the pipe without it is the
death of the run."""

RUN_STATUS = "run status"
"""The kind of an event about a new status of the run; its facts are `status`, `before` and `how`.
It comes from the observer and is not in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRun:
    """The run that is shipped."""

    name: str
    """The name of its folder."""
    home: Path
    """Its `trimtab/` folder; post-mortems are in `incidents/` there once the run has ended."""
    manifest: Mapping[str, Any]
    """What the run was (`manifest.json`); from a file, so its types are not certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMemory:
    """What a sink remembers across restarts of the shipper, such as the id of its run."""

    values: dict[str, Any]
    """Plain JSON values; saved with the position after every `send`. Never a secret."""
    save: Callable[[], None]
    """Saves them now: on disk when it returns."""


@runtime_checkable
class Sink(Protocol):
    """Sends the records and events of one run to one place."""

    @property
    def name(self) -> str:
        """The name in the setting `ship.to`, in `--to` and in the file of its position."""
        ...

    @property
    def needs_everything(self) -> bool:
        """Whether each start of the shipper sends the whole journal from its first record.

        A long one comes in several blocks; `poll` is called when all of them were sent.
        """
        ...

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Prepare: find or create what the records go to."""
        ...

    def send(self, block: Block) -> None:
        """Send records and events; raises Refused if sending them again cannot help."""
        ...

    def poll(self) -> None:
        """Do what is due by the clock, such as a message that could not be sent before."""
        ...

    def finish(self, status: RunStatus) -> None:
        """Attach what belongs to the end of a run; everything else was sent."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...
