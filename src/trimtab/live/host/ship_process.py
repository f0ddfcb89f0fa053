"""ShipProcess: the shipper that the first rank starts, and what it reports.

No tracker is imported here and no socket is opened: the process gets the run directory and its
settings, and follows the journal by itself (`trimtab.integrations.shipper`).
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import weakref
from typing import Any

from trimtab.core.config import ShipConfig
from trimtab.core.sink import GUARD_CLOSED
from trimtab.journal import RunDirectory
from trimtab.live.shield import log

_RANK_SETTINGS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""A library in the shipper must not take itself for a rank."""

_running: list["subprocess.Popen[bytes]"] = []
"""Shippers that outlive their guard; polled when the next one ends, so that none is a zombie."""


class ShipProcess:
    """Starts the shipper, passes on its lines, and ends its input when the guard is closed.

    Whatever happens to it, training continues; each failure is logged once.
    """

    def __init__(self, run: RunDirectory, config: ShipConfig) -> None:
        """Start it, unless the settings name no sink."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lines = b""
        self._run = run
        if not config.to:
            return
        command = [sys.executable, "-P", "-m", "trimtab.integrations.shipper", str(run.root)]
        environment = {n: value for n, value in os.environ.items() if n not in _RANK_SETTINGS}
        try:
            # A session of its own: neither Ctrl-C nor a launcher that ends a process group stops
            # it before it has sent the rest. No descriptor of the trainer stays open in it, not
            # even standard error: a process that reads it to its end would wait for the shipper.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, "--config", json.dumps(config.to_dict())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
            if self._process.stdout is not None:
                os.set_blocking(self._process.stdout.fileno(), False)
            _started.add(self)
        except Exception as error:
            log.warning(
                "trimtab: nothing is sent to %s: the shipper did not start: %s; later: "
                "trimtab ship %s",
                ", ".join(config.to),
                error,
                run.root,
            )

    def check(self) -> None:
        """Log what the shipper reports; never waits."""
        process = self._process
        if process is None or process.stdout is None:
            return
        with contextlib.suppress(OSError):  # BlockingIOError: nothing new
            while data := os.read(process.stdout.fileno(), 4096):
                self._lines += data
        *lines, self._lines = self._lines.split(b"\n")
        for line in lines:
            log.warning("trimtab: %s", line.decode("utf-8", "replace"))
        if process.poll() is not None:
            log.warning(
                "trimtab: the shipper ended with code %d while the run goes on; %s has the reason",
                process.returncode,
                self._run.home / "ship" / "ship.log",
            )
            self._release()

    def close(self) -> None:
        """The guard is closed: the shipper sends the rest by itself and ends; never waits."""
        process = self._process
        if process is None:
            return
        self.check()
        if process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                os.write(process.stdin.fileno(), GUARD_CLOSED)
        self._release()

    def _release(self) -> None:
        """Close the pipes; a process that still runs is left to itself."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _running[:] = [left for left in _running if left.poll() is None]
        if process.poll() is None:
            _running.append(process)


_started: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _leave_running() -> None:
    # They are meant to outlive this process; Python would warn about each.
    for process in _running:
        process.returncode = process.poll() or 0


atexit.register(_leave_running)


def _release_in_child() -> None:
    # A data loader worker that outlives a killed trainer must not keep its pipe open.
    for process in _started:
        process._release()


os.register_at_fork(after_in_child=_release_in_child)
