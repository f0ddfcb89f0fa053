"""ObserverProcess: the observer that the first rank starts, and what it says by its pipe.

    start     a child in a session of its own; it follows the journal by itself
    check     lines for the log, incidents for `on_incident`; a child that died is started once more
    catch_up  verdicts on the checkpoints from the records of this moment, before one is saved
    close     wait, bounded, until its files are there

Nothing here judges, and training never depends on it: without it the journal is whole, and `trimtab
observe RUN` gives the same result. Only this pipe can ask a run for anything, never a file.
"""

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from trimtab.core.incidents import Incident
from trimtab.core.log import log
from trimtab.core.sink import GUARD_CLOSED
from trimtab.core.text import printable
from trimtab.journal import RunDirectory
from trimtab.journal.checkpoints.index import judged_tick

_RANK_SETTINGS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""A library in the observer must not take itself for a rank."""

OBSERVER_SETTING = "TRIMTAB_OBSERVER"
"""The environment variable that, set to "off", starts no observer: for test suites and clusters
that run one `trimtab observe` for all runs."""

JUDGE_SECONDS = 120.0
"""How long loading a checkpoint waits for the judgement of the run before it. Chosen: a million
records are judged in 10 s."""

CLOSE_SECONDS = 20.0
"""How long closing waits for the observer to write its files. Chosen: a journal of a million
records is judged in 10 s, and its observer has judged nearly all of it by then."""

CATCH_UP_SECONDS = 2.0
"""How long a save waits for verdicts on the earlier checkpoints. Chosen: records reach the disk
within 0.1 s and are judged within milliseconds."""

CALLBACK_SECONDS = 5.0
"""How long closing waits for `on_incident` to return."""

MAX_STARTS = 2
"""Times that an observer is started: it may be killed by mistake, but not twice."""

MAX_PENDING = 2**22
"""Bytes of a line that is not complete; a child that sends more is not one of ours."""

_left: list["subprocess.Popen[bytes]"] = []
"""Observers that outlive their guard; polled when the next one ends, so that none is a zombie."""


def observer_command(run: RunDirectory, *options: str) -> list[str]:
    """Return the command of an observer; -P keeps the user's files from shadowing its modules."""
    return [sys.executable, "-P", "-m", "trimtab.observe", str(run.root), *options]


def observer_environment() -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if name not in _RANK_SETTINGS}
    return {**given, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def judge_to_end(run: RunDirectory) -> None:
    """Judge a run to the end of its journal; raises OSError or SubprocessError if that fails."""
    subprocess.run(  # noqa: S603 - our own interpreter and module
        observer_command(run, "--once"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=observer_environment(),
        timeout=JUDGE_SECONDS,
        check=True,
    )


class Callbacks:
    """Hands incidents to the user's function, on a thread of its own."""

    def __init__(self, on_incident: Callable[[Incident], None] | None) -> None:
        self._on_incident = on_incident
        self._waiting: queue.SimpleQueue[Incident | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, incident: Incident) -> None:
        """Call the function soon."""
        if self._on_incident is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._call, name="trimtab-incidents")
            self._thread.daemon = True
            self._thread.start()
        self._waiting.put(incident)

    def close(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(CALLBACK_SECONDS)

    def _call(self) -> None:
        on_incident = self._on_incident
        while on_incident is not None and (incident := self._waiting.get()) is not None:
            try:
                on_incident(incident)
            except Exception:
                log.exception("trimtab: on_incident raised; training continues")


class NoObserver:
    """A run that nobody judges while it trains: `trimtab observe RUN` does, during it or later."""

    incidents: tuple[Incident, ...] = ()
    num_changes = 0
    is_judging = False

    def check(self) -> None:
        """Do nothing."""

    def catch_up(self, tick: int, seconds: float = 0.0) -> bool:
        """Return False: the verdicts are not of this moment."""
        return False

    def close(self) -> None:
        """Do nothing."""


class ObserverProcess:
    """Starts the observer of a run and hears it. Whatever happens to it, training continues."""

    is_judging = True

    def __init__(
        self,
        run: RunDirectory,
        callbacks: Callbacks,
        on_change: Callable[[Incident], None],
        *,
        stall_seconds: float,
    ) -> None:
        """`on_change` is called in `check`, with every incident that is new or has changed."""
        self._run = run
        self._callbacks = callbacks
        self._on_change = on_change
        self._options = ["--stall-seconds", str(stall_seconds)]
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._num_starts = 0
        self._is_done = False
        """Whether the observer has judged and written everything; it may still send it on."""
        self._incidents: dict[int, Incident] = {}
        self.num_changes = 0
        """Changes of incidents that were heard of."""
        _started.add(self)
        self._start()

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Every incident that was heard of, as it then stood."""
        return tuple(self._incidents.values())

    def check(self) -> None:
        """Hear what is new, and start a child that died once more; never waits."""
        process = self._process
        if process is None:
            return
        self._hear(process)
        if process.poll() is not None:
            self._release()
            if self._num_starts < MAX_STARTS:
                log.info("trimtab: the observer ended with %d; started again", process.returncode)
                self._start()
            else:
                log.warning(
                    "trimtab: the observer ended with %d, twice: nobody judges this run; the "
                    "journal is whole: trimtab observe %s",
                    process.returncode,
                    self._run.root,
                )

    def catch_up(self, tick: int, seconds: float = CATCH_UP_SECONDS) -> bool:
        """Return whether the verdicts follow from the records up to a tick; waits a little."""
        deadline = time.monotonic() + seconds
        while self._process is not None:
            self._hear(self._process)  # a pipe that is full would hold it
            self._write(b"?")
            if judged_tick(self._run.home) >= tick:
                self.check()
                return True
            if time.monotonic() > deadline or self._process.poll() is not None:
                break
            time.sleep(0.02)
        return False

    def close(self) -> None:
        """The guard is closed: wait, bounded, until everything is judged and written."""
        process = self._process
        if process is None:
            self._callbacks.close()
            return
        self._write(GUARD_CLOSED)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        while process.poll() is None and not self._is_done and time.monotonic() < deadline:
            self._hear(process)  # a pipe that is full would hold it
            time.sleep(0.01)
        self._hear(process)
        if self._is_done:
            pass  # it may still send the run to trackers, by itself
        elif process.poll() is None:
            log.warning(
                "trimtab: the observer still works and goes on by itself; if it is stopped: "
                "trimtab observe %s",
                self._run.root,
            )
        elif process.returncode:
            log.warning(
                "trimtab: the observer ended with %d before it was done: trimtab observe %s",
                process.returncode,
                self._run.root,
            )
        self._release()
        self._callbacks.close()

    def _start(self) -> None:
        self._num_starts += 1
        try:
            # A session of its own: neither Ctrl-C nor a launcher that ends a process group stops
            # it before it has written the rest. No descriptor of the trainer stays open in it, not
            # even standard error: a process that reads it to its end would wait for the observer.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                observer_command(self._run, *self._options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=observer_environment(),
            )
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
        except Exception as error:
            log.warning(
                "trimtab: no observer: %s; nobody judges this run; the journal is whole: trimtab "
                "observe %s",
                error,
                self._run.root,
            )

    def _write(self, data: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                os.write(self._process.stdin.fileno(), data)

    def _hear(self, process: "subprocess.Popen[bytes]") -> None:
        if process.stdout is None:
            return
        with contextlib.suppress(OSError):  # BlockingIOError: nothing new
            while len(self._pending) < MAX_PENDING and (
                data := os.read(process.stdout.fileno(), 65536)
            ):
                self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message: dict[str, Any] = json.loads(line)
            self._is_done = self._is_done or message.get("done") is True
            if "line" in message:
                log.log(int(message["level"]), "trimtab: %s", printable(str(message["line"])))
            if "incident" in message:
                self._take_incident(message["incident"], is_new=message["is_new"] is True)
        except (ValueError, KeyError, TypeError, AttributeError):  # a line of another version
            log.debug("trimtab: the observer sent what is not understood")

    def _take_incident(self, state: dict[str, Any], *, is_new: bool) -> None:
        incident = Incident.from_state(state)
        self._incidents[incident.number] = incident
        if is_new:
            self.num_changes += 1
            self._on_change(incident)
            self._callbacks.add(incident)

    def _release(self) -> None:
        """Close the pipes; a process that still runs is left to itself."""
        process, self._process = self._process, None
        self._pending = b""
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _left[:] = [left for left in _left if left.poll() is None]
        if process.poll() is None:
            _left.append(process)


_started: "weakref.WeakSet[ObserverProcess]" = weakref.WeakSet()


def _leave_running() -> None:
    # They are meant to outlive this process; Python would warn about each.
    for process in _left:
        process.returncode = process.poll() or 0


atexit.register(_leave_running)


def _release_in_child() -> None:
    # A data loader worker that outlives a killed trainer must not keep its pipe open.
    for process in _started:
        process._release()


os.register_at_fork(after_in_child=_release_in_child)
