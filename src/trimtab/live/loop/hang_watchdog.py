"""HangWatchdog: a run that stands still says where, instead of waiting for its time limit.

A thread on every rank looks at the run's progress. Where there is none for `seconds`, the stacks of
all threads go to `trimtab/hang/rank-00003.txt`; the first rank journals the event with its stack.
A rank that waits for a hung one stands still too, so every rank writes its file, and the one whose
stack is not in a collective is the one to look at.

Evaluation is progress: calls of the guard count, and while the model is in evaluation mode any
change of the stack of the training thread does. Only there, because a loop that waits for ever and
polls changes its stack too.

Nothing runs on the step path. A hang that holds the interpreter's lock (an extension that never
returns) stops this thread too.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Hashable
from pathlib import Path

from torch import nn

from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.journal.files import open_new
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.shield import log

GRACE_SECONDS = 2.0
"""Between a rank's stacks and its end: the other ranks write theirs, the journal its last
entries."""

EVALUATION_SECONDS = 0.5
"""Between two looks at the stack in evaluation. Often, because the same forward pass takes most of
the time of an evaluation, and two looks may find the same place in it."""

MAX_STACK_CHARS = 8000
"""Of the stacks that are journalled; the file has all of them."""


class HangWatchdog:
    """Reports `seconds` without progress; with `ends_run` the process then ends with 75."""

    def __init__(
        self,
        run: RunDirectory,
        rank: int,
        seconds: float,
        monitor: StepMonitor,
        model: nn.Module,
        *,
        ends_run: bool,
    ) -> None:
        self._run = run
        self._rank = rank
        self._seconds = seconds
        self._monitor = monitor
        self._model = getattr(model, "module", model)  # such as DDP, of which loops unwrap
        self._thread = threading.get_ident()
        self._ends_run = ends_run
        threading.Thread(target=self._watch, name="trimtab-hang", daemon=True).start()

    def _watch(self) -> None:
        last, since = self._progress(), time.monotonic()
        while last is not None:
            is_training = self._model.training
            time.sleep(min(self._seconds / 4, 10.0 if is_training else EVALUATION_SECONDS))
            progress, now = self._progress(), time.monotonic()
            if progress != last:
                last, since = progress, now
            elif now - since >= self._seconds:
                self._report(now - since)
                if self._ends_run:
                    time.sleep(GRACE_SECONDS)
                    os._exit(RunExit.RELAUNCH)
                since = now  # the next report comes after as long again

    def _progress(self) -> tuple[Hashable, ...] | None:
        """Return a value that changes with all that the run does; None once the guard is closed."""
        monitor = self._monitor
        if monitor.is_closed:
            return None
        stack = () if self._model.training else self._stack()
        return monitor.next_step, monitor.sync.num_exchanges, monitor.num_calls, stack

    def _stack(self) -> tuple[Hashable, ...]:
        """Return where the training thread is, to the instruction."""
        frame, places = sys._current_frames().get(self._thread), []
        while frame is not None:
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return tuple(places)

    def _report(self, waited: float) -> None:
        step = self._monitor.next_step
        reason = f"rank {self._rank} has stood still for {waited:.0f} s at step {step}"
        end = "; the run ends and asks for a relaunch" if self._ends_run else ""
        try:
            path = self._write_stacks(reason)
            log.error("trimtab: %s; stacks: %s%s", reason, path, end)
            recorder = self._monitor.recorder
            if recorder.is_recording:
                stack = path.read_text(encoding="utf-8")[:MAX_STACK_CHARS]
                recorder.journal.event("hang", step, seconds=waited, stack=stack)
                if self._ends_run:
                    ExitRequest(code=RunExit.RELAUNCH, reason=reason, step=step).write(self._run)
        except OSError as error:  # a full disk must not hide the hang
            log.error("trimtab: %s; its stacks cannot be written: %s%s", reason, error, end)

    def _write_stacks(self, reason: str) -> Path:
        path = self._run.folder("hang") / f"rank-{self._rank:05}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_new(path) as file:
            file.write(f"{reason}\n".encode())
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        return path
