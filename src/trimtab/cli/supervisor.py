"""Supervisor: launches a training command again when the run asks for it.

Each launch ends in one of four ways:

    ended by itself with 0            the supervisor ends with 0
    asked for a relaunch (75)         launched again, while the budget lasts
    asked not to be relaunched (76)   the supervisor ends with 76
    crashed or was killed             launched again if crashes are included, else its exit code

The budget counts launches in a row that got no further than the one before. A run that makes
progress may be relaunched any number of times, up to a total.
"""

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trimtab.core.text import counted
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.exit_request import SUPERVISOR_FOLDER, ExitRequest, RunExit, announced_run

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers and people send to the supervisor and mean for the run."""

ENDING = (signal.SIGTERM, signal.SIGINT)
"""After one of these the run is not launched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaunchBudget:
    """How often a command may be launched again."""

    without_progress: int = 3
    """Launches in a row that got no further than the one before."""
    total: int = 100
    """Source: OPT-175B needed about 90 restarts in two months."""
    include_crashes: bool = False
    """Whether a crash or a kill is followed by a relaunch too."""
    delay_seconds: float = 5.0
    """Between the end of a launch and the next one."""


class Supervisor:
    """Runs a command until it is done, or until nothing is gained by running it again."""

    def __init__(
        self,
        command: Sequence[str],
        budget: RelaunchBudget,
        report: Callable[[str], None],
        environment: dict[str, str],
    ) -> None:
        self._command = list(command)
        self._budget = budget
        self._report = report
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None
        self._ended_by: int | None = None

    def run(self) -> int:
        """Launch the command as often as it takes; returns the exit code."""
        with tempfile.TemporaryDirectory(prefix="trimtab-run-") as name, _signals_to(self._on):
            folder = Path(name)
            num_relaunches = num_stuck = 0
            furthest = -1
            while True:
                code = self._launch(folder)
                request = ExitRequest.read(folder)
                if self._ended_by is not None or not self._may_relaunch(code, request):
                    return self._exit_code(code, request)
                reached = _last_step(announced_run(folder))
                # A relaunch repeats the steps since its checkpoint: they are no progress.
                num_stuck = 0 if reached > furthest else num_stuck + 1
                furthest = max(furthest, reached)
                if num_stuck >= self._budget.without_progress:
                    self._report(f"{num_stuck} launches in a row got no further; giving up")
                    return self._exit_code(code, request)
                if num_relaunches >= self._budget.total:
                    self._report(f"launched again {counted(num_relaunches, 'time')}; giving up")
                    return self._exit_code(code, request)
                num_relaunches += 1
                reason = f"exit code {code}" if request is None else request.reason
                after = f" after step {reached:,}" if reached >= 0 else ", no step was recorded"
                self._report(f"relaunch {num_relaunches}{after}: {reason}")
                if self._wait():
                    return self._exit_code(code, request)

    def _launch(self, folder: Path) -> int:
        (folder / "exit.json").unlink(missing_ok=True)  # a request of the launch before
        environment = {**self._environment, SUPERVISOR_FOLDER: str(folder)}
        # The command is the user's, as they typed it; no shell reads it.
        self._child = subprocess.Popen(self._command, env=environment)  # noqa: S603
        if self._ended_by is not None:  # the signal came before there was a child
            self._child.send_signal(self._ended_by)
        return self._child.wait()

    def _may_relaunch(self, code: int, request: ExitRequest | None) -> bool:
        if code == 0:
            return False
        wanted = request.code if request is not None else code
        if wanted == RunExit.STOP:
            return False
        return wanted == RunExit.RELAUNCH or self._budget.include_crashes

    def _exit_code(self, code: int, request: ExitRequest | None) -> int:
        if code != 0 and request is not None:
            self._report(f"the run has ended itself at step {request.step}: {request.reason}")
            return int(request.code)
        return 128 - code if code < 0 else code  # as a shell reports a signal

    def _wait(self) -> bool:
        """Wait before the next launch; whether a signal has ended the supervisor meanwhile."""
        deadline = time.monotonic() + self._budget.delay_seconds
        while time.monotonic() < deadline and self._ended_by is None:
            time.sleep(0.05)
        return self._ended_by is not None

    def _on(self, number: int, frame: FrameType | None) -> None:
        if number in ENDING:
            self._ended_by = number
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)


@contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """While this is entered, the forwarded signals go to the handler."""
    before = {number: signal.signal(number, handler) for number in FORWARDED}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _last_step(run: RunDirectory | None) -> int:
    """Return the largest step in the run's journal; -1 if there is none."""
    if run is None or not run.exists():
        return -1
    block = read_journal(run).block
    return int(block.step.max()) if len(block) else -1
