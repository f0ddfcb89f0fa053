"""Runs to ship, sinks that keep what they get, and a shipper in a process of its own."""

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.kit.observing import run_shipper

from trimtab.core.block import Block, Event
from trimtab.core.config import ShipConfig
from trimtab.core.sink import RUN_STATUS, RunStatus, ShippedRun, Sink, SinkMemory
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.news import REPORT_WRITTEN
from trimtab.observe.news_writer import NewsWriter
from trimtab.observe.run_observer import journal_size
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper

BEGAN = 1.7e9
ENDED = {"status": "ended", "how": "closed"}


def append(journal: JournalWriter, step: int, **more: float) -> None:
    """One record of a run that makes ten steps a second."""
    journal.append(step, {"loss": 3.0 - step / 1e4, "lr": 1e-3, "clock": BEGAN + step / 10, **more})


def write_run(folder: Path, /, steps: int = 30, **more: float) -> RunDirectory:
    """A run that has ended and was judged, with one incident."""
    run = RunDirectory(folder)
    manifest = {"trimtab": "0.2", "mode": "observe", "model": "GPT", "world": 2}
    run.write_manifest({**manifest, "began": "2023-11-14T22:13:20Z"})
    with JournalWriter(run) as journal:
        for step in range(steps):
            append(journal, step, **more)
            if step == 20:
                open_incident(journal, 20)
    postmortem = run.incidents / "0001-step-000020" / "postmortem.md"
    postmortem.parent.mkdir(parents=True)
    postmortem.write_text("# Incident 1\n")
    say(run, Event(kind=RUN_STATUS, tick=steps, step=steps - 1, facts=ENDED))
    written = {"bytes": journal_size(run)}
    say(run, Event(kind=REPORT_WRITTEN, tick=steps, step=steps - 1, facts=written))
    return run


def say(run: RunDirectory, event: Event) -> None:
    """Say something as the observer of a run does."""
    writer = NewsWriter(run)
    writer.say(event)
    writer.close()


def open_incident(journal: JournalWriter, step: int, number: int = 1, **facts: Any) -> None:
    given = {"transition": "opened", "onset": step, "incident_class": "open", "peak_loss": math.nan}
    given |= {"symptoms": ["loss spike"], "explanation": "a hard batch", "action": "Wait."}
    journal.event("incident", step, number=number, **(given | facts))


class KeepingSink:
    """Keeps what it gets; `on_send` may raise first."""

    name = "keeping"
    needs_everything = False

    def __init__(self, on_send: Callable[[Block], None] = lambda block: None) -> None:
        self._on_send = on_send
        self.points: list[tuple[int, str, float]] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.clocks: dict[int, float] = {}
        self.finished: list[RunStatus] = []
        self.num_begun = 0
        self.memory: SinkMemory | None = None
        self.is_closed = False

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        self.num_begun += 1
        self.memory = memory

    def send(self, block: Block) -> None:
        self._on_send(block)
        for name, column in block.columns.items():
            rows = [row for row in range(len(block)) if column.present[row]]
            if name == "clock":
                self.clocks |= {int(block.tick[row]): float(column.values[row]) for row in rows}
            else:
                self.points += [
                    (int(block.tick[row]), name, float(column.values[row])) for row in rows
                ]
        self.events += [(event.kind, event.facts) for event in block.events]

    def poll(self) -> None:
        pass

    def finish(self, status: RunStatus) -> None:
        self.finished.append(status)

    def close(self) -> None:
        self.is_closed = True

    def ticks(self, name: str = "loss") -> list[int]:
        return [tick for tick, signal, _ in self.points if signal == name]


def ship(run: RunDirectory, *sinks: Sink, config: ShipConfig | None = None) -> bool:
    """Ship a run that is over; whether everything was sent."""
    shipper_config = config or ShipConfig()
    shipper = Shipper(run, sinks, shipper_config, ShipLog(run, None))
    limit = threading.Timer(60, shipper.stop)  # what never succeeds is tried for ever
    limit.start()
    try:
        return run_shipper(shipper, run, shipper_config.stall_seconds)
    finally:
        limit.cancel()


@contextlib.contextmanager
def shipping(
    run: RunDirectory, *names: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`trimtab observe` in an interpreter of its own, killed at the end if it still runs."""
    options = [option for name in names for option in ("--to", name)]
    with subprocess.Popen(
        [sys.executable, "-m", "trimtab.cli", "observe", str(run.root), *options],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as shipper:
        try:
            yield shipper
        finally:
            shipper.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Fail unless the condition holds within this time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
