"""The observer that `watch` starts on the first rank: `python -m trimtab.observe RUN`.

standard input    a byte asks for verdicts now; it ends when the guard is closed ("closed" comes
                  first) or its process is gone
standard output   lines of JSON: lines for the training log, incidents for `on_incident`, and
                  "done" when the run is over and everything is judged and written

If the settings of the run name sinks (`ship.to`), it is sent there too, by threads of this process:
for up to `ship.drain_seconds` after the run is over, while nobody waits any more.

`--once` judges to the end of the journal and ends: for a run that is about to load a checkpoint.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from trimtab.core.incidents import Incident
from trimtab.core.plugins import describe_error
from trimtab.diagnosis import run_config
from trimtab.journal import RunDirectory
from trimtab.observe.liveness import Owner
from trimtab.observe.observed_run import ObservedRun, observe_once
from trimtab.observe.run_observer import Listener
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper, open_sinks

POLL_SECONDS = 0.5
"""From one look at the journal to the next; the journal itself is written every 0.1 s."""

ASKED_SECONDS, ASKED_POLL_SECONDS = 1.0, 0.02
"""How often, and how long, to look for the records of the last moment when verdicts are asked
for."""

MAX_MEMORY = 2 * 2**30
"""Bytes that an observer may take: a detector that wants more fails, and the machine of a run is
not exhausted. Chosen: columns of a journal that take more stay on disk."""

MAX_SECONDS_OF_WORK = 600.0
"""After so long without an end of one look at the journal the observer ends, to be started again:
a detector may loop for ever. Chosen: a million records are judged in seconds."""


class Pipe(Listener):
    """Tells the training process; what libraries print goes nowhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe = os.dup(sys.stdout.fileno())
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

    def line(self, level: int, text: str) -> None:
        """Send a line for the log of the run."""
        self._send({"level": level, "line": text})

    def incident(self, incident: Incident, *, is_new: bool) -> None:
        """Send an incident as it now stands."""
        self._send({"incident": dataclasses.asdict(incident), "is_new": is_new})

    def done(self) -> None:
        """Send that everything is judged and written."""
        self._send({"done": True})

    def _send(self, message: dict[str, object]) -> None:
        data = json.dumps(message).encode() + b"\n"
        # The threads of all sinks have lines too. OSError: nobody reads, but the files are there.
        with self._lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._pipe, data) :]


class Watchdog:
    """Ends a process whose work does not end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()
        self._has_stopped = False
        threading.Thread(target=self._watch, name="trimtab-watchdog", daemon=True).start()

    def reset(self) -> None:
        """Note that a piece of work has ended."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """Leave the process alone."""
        self._has_stopped = True

    def _watch(self) -> None:
        while time.monotonic() - self._last < self._seconds:
            time.sleep(min(self._seconds / 10, 5.0))
            if self._has_stopped:
                return
        os._exit(os.EX_SOFTWARE)


def observe_child(run: RunDirectory, stall_seconds: float, watchdog: Watchdog) -> None:
    """Observe until the training process is gone, and send the rest."""
    pipe = Pipe()
    try:
        _observe(run, pipe, stall_seconds, watchdog)
    except Exception as error:
        pipe.line(logging.WARNING, f"the observer failed: {describe_error(error)}")
        raise


def _observe(run: RunDirectory, pipe: Pipe, stall_seconds: float, watchdog: Watchdog) -> None:
    owner = Owner(sys.stdin.fileno())
    observed = ObservedRun(run, pipe, process=owner, stall_seconds=stall_seconds)
    config = run_config(run).ship
    log = ShipLog(run, partial(pipe.line, logging.WARNING))
    shipper = Shipper(run, open_sinks(config.to, log), config, log, gives_up=True)
    shipper.start()
    asked_until = 0.0
    while not observed.standing.status.is_over:
        observed.poll()
        is_asked = time.monotonic() < asked_until
        if is_asked and observed.observer is not None:
            observed.observer.judge_checkpoints(now=True)
        shipper.note_standing(observed.standing)
        watchdog.reset()
        if not observed.standing.status.is_over and owner.wait(
            ASKED_POLL_SECONDS if is_asked else POLL_SECONDS
        ):
            asked_until = time.monotonic() + ASKED_SECONDS
    pipe.done()
    watchdog.stop()  # what is sent has bounds of its own
    shipper.close()


def main() -> None:
    """Observe one run."""
    parser = argparse.ArgumentParser(prog="trimtab.observe")
    parser.add_argument("run", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--stall-seconds", type=float, default=600.0)
    parser.add_argument("--work-seconds", type=float, default=MAX_SECONDS_OF_WORK)
    arguments = parser.parse_args()
    os.nice(5)  # what is trained goes first
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    run = RunDirectory(arguments.run)
    watchdog = Watchdog(arguments.work_seconds)
    if arguments.once:
        observe_once(run)
        return
    # A Ctrl-C in the terminal ends the run; the observer then writes the rest by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    observe_child(run, arguments.stall_seconds, watchdog)
    # A sink may hang in a library; its threads and exit hooks must not hold this process.
    os._exit(0)


if __name__ == "__main__":
    main()
