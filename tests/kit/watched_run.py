"""A user's training loop with all that it asks of a guard, and what one run of it leaves behind.

A loader, record, clip, step, an event, a checkpoint, a skip, an undo, close, and two steps after
that without a guard. A run has a time limit, and leaves the process as it was.
"""

import contextlib
import gc
import hashlib
import logging
import random
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import trimtab
from trimtab.core.config import Config

MODES = ("observe", "protect", "recover")

WATCHED_STEPS = 16
FREE_STEPS = 2
"""Steps after close: a flag that was left on the optimizer shows in them."""
ARMED_AT = 6
EVENT_AT, STATE_AT, NAN_AT, CHECKPOINT_AT, SKIP_AT, UNDO_AT, INCIDENTS_AT = 8, 9, 10, 11, 12, 13, 14

LIMIT_SECONDS = 15.0
"""How long a run may take. Chosen: without a fault it takes a tenth of a second, on a busy machine
one or two."""
FIRST_SECONDS = 120.0
"""How long a first run may take, which imports what later ones find, or one that is profiled."""


class Hang(BaseException):
    """The time is up; no Exception, so that no shield catches it."""


@dataclass(kw_only=True)
class RunEnd:
    """All that a run leaves behind."""

    bits: dict[str, str] = field(default_factory=dict)
    """Checksums of what was trained, of the random numbers, and of what the loop was told."""
    has_nan: bool = False
    """Whether a weight is not finite."""
    place: str = ""
    """The call in which the loop was when it ended; empty if it came to its end."""
    error: BaseException | None = None
    log: list[str] = field(default_factory=list)
    """Warnings and errors that trimtab has logged."""
    elsewhere: list[str] = field(default_factory=list)
    """Exceptions that ended a thread or a finalizer."""


class Loop:
    """A user's training loop; `place` is the call that it is in."""

    def __init__(self, mode: str | None, folder: Path) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        self.mode = mode
        self.place = "watch"
        self.told: list[str] = []
        """Everything that the loop got back from a call, where it is the same without a guard."""
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.guard: Any = None
        if mode is not None:
            self.guard = trimtab.watch(
                self.model,
                self.optimizer,
                run_dir=folder,
                mode=mode,
                config=Config().override(
                    {"live.telemetry_every": 3, "live.lag_steps": 1, "recover.snapshot_every": 3}
                ),
                batch_loss=self.loss_of,
                checkpoints=trimtab.Checkpoints(self.model, self.optimizer, run_dir=folder),
            )

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(batch)
        return (output - batch.flip(1)).pow(2).mean()

    def train(self, arm: Callable[[], None], disarm: Callable[[], None], bad: int | None) -> None:
        """Train with the guard, close it, and train on; the loss of the step `bad` is NaN."""
        generator = torch.Generator().manual_seed(1)
        data = [torch.randn(4, 8, generator=generator) for _ in range(WATCHED_STEPS + FREE_STEPS)]
        self.place = "guard.steps"
        watched = data[:WATCHED_STEPS]
        for index, batch in enumerate(self._batches(watched)):
            if index == ARMED_AT:
                arm()
            self._take(index, batch, is_bad=index == bad)
            self.place = "guard.steps"
        if self.guard is not None:
            self.place = "guard.close"
            self.guard.close()
        disarm()
        for batch in data[WATCHED_STEPS:]:
            self.place = "after close"
            self.loss_of(batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.place = ""

    def _batches(self, data: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        if self.guard is None:
            yield from data
        else:
            for step in self.guard.steps(data):
                yield from step

    def _take(self, index: int, batch: torch.Tensor, *, is_bad: bool) -> None:
        guard = self.guard
        self.place = "forward"
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        loss = self.loss_of(batch) * (float("nan") if is_bad else 1.0)
        if guard is not None:
            self.place = "guard.record"
            guard.record(loss=loss, tokens=batch.numel(), batch=batch, accuracy=0.5)
            guard.record(reward=loss.detach())
        self.place = "backward"
        loss.backward()
        self.place = "guard.clip_grad_norm_"
        if guard is None:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        else:
            norm = guard.clip_grad_norm_(1.0)
        self.told.append(f"{index} {float(norm)!r}")
        if guard is not None:
            self._ask(index)
        if is_bad and guard is None:  # the loop itself does what a guard would
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
        elif index != SKIP_AT:
            self.place = "optimizer.step"
            self.optimizer.step()
        self.place = "loop"
        self.optimizer.zero_grad()
        self.schedule.step()

    def _ask(self, index: int) -> None:
        """What a loop asks of its guard now and then."""
        guard = self.guard
        if index == EVENT_AT:
            self.place = "guard.event"
            guard.event("evaluation", accuracy=0.5)
        elif index == STATE_AT:
            self.place = "guard.state_dict"
            assert isinstance(guard.state_dict(), dict)
        elif index == CHECKPOINT_AT:
            self.place = "guard.checkpoint"
            guard.checkpoint()
        elif index == SKIP_AT:
            self.place = "guard.skip"
            guard.skip()
        elif index == UNDO_AT:
            self.place = "guard.undo"
            guard.undo()
        elif index == INCIDENTS_AT:
            self.place = "guard.incidents"
            assert isinstance(guard.incidents, tuple)

    def bits(self) -> dict[str, str]:
        """Checksums of everything that must not depend on the guard."""
        state = {f"model {name}": value for name, value in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer {index} {name}": value for name, value in slots.items()}
        state["torch random numbers"] = torch.get_rng_state()
        found = {name: _checksum(value.numpy().tobytes()) for name, value in state.items()}
        found["rate"] = repr([group["lr"] for group in self.optimizer.param_groups])
        found["random numbers"] = _checksum(repr(random.getstate()).encode())
        legacy = np.random.get_state()  # noqa: NPY002
        found["numpy random numbers"] = _checksum(repr(legacy).encode())
        return found | {"told": repr(self.told)}


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def run(
    mode: str | None,
    *,
    arm: Callable[[], None] = lambda: None,
    disarm: Callable[[], None] = lambda: None,
    is_bad: bool | None = None,
    seconds: float = LIMIT_SECONDS,
) -> RunEnd:
    """Train once; `arm` is called in step ARMED_AT and `disarm` when the guard was closed."""
    bad = NAN_AT if (mode not in (None, "observe") if is_bad is None else is_bad) else None
    end = RunEnd()
    folder = Path(tempfile.mkdtemp(dir=_fast_disk()))
    loop: Loop | None = None
    with _outside_world(end):
        try:
            with time_limit(seconds):
                loop = Loop(mode, folder)
                loop.train(arm, disarm, bad)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            end.error, end.place = error, "watch" if loop is None else loop.place
        finally:
            disarm()
            if loop is not None:
                end.bits = loop.bits()
                end.has_nan = not all(bool(p.isfinite().all()) for p in loop.model.parameters())
                _close(loop.guard)
    shutil.rmtree(folder, ignore_errors=True)
    return end


def _close(guard: Any) -> None:
    """Close a guard that may be broken, so that it does not disturb the next run."""
    if guard is not None:
        with contextlib.suppress(Exception, Hang), time_limit(5.0):
            guard.close()


def collect_garbage() -> None:
    """Let go of what broken runs have left open, without the warnings that this gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def _fast_disk() -> str | None:
    """A folder in memory, where there is one: a journal is synced to its disk."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None


@contextmanager
def _outside_world(end: RunEnd) -> Iterator[None]:
    """Note what a run logs and what ends its threads; leave the process as it was."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: end.log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("trimtab")
    before = (logger.propagate, logger.level, logger.handlers[:])
    disabled = logging.root.manager.disable
    hooks = (threading.excepthook, sys.unraisablehook)
    handled = signal.getsignal(signal.SIGTERM)

    def note(failure: Any) -> None:
        end.elsewhere.append(repr(failure.exc_value))

    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logging.disable(logging.INFO)  # torch describes every checkpoint in twenty lines
    threading.excepthook = sys.unraisablehook = note
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        logger.propagate, level, logger.handlers[:] = before
        logger.setLevel(level)
        logging.disable(disabled)
        signal.signal(signal.SIGTERM, handled)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread when the time is up, and again until it ends."""
    # SIGALRM belongs to pytest-timeout.
    main = threading.main_thread().ident
    is_over = threading.Event()
    assert main is not None

    def watch() -> None:
        if is_over.wait(seconds):
            return
        while True:
            signal.pthread_kill(main, signal.SIGUSR1)
            if is_over.wait(1.0):
                return

    def stop(number: int, frame: FrameType | None) -> None:
        if not is_over.is_set():
            raise Hang

    before = signal.signal(signal.SIGUSR1, stop)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def differences(one: RunEnd, other: RunEnd) -> tuple[str, ...]:
    """What has other bits in two runs."""
    names = sorted(one.bits.keys() | other.bits.keys())
    return tuple(name for name in names if one.bits.get(name) != other.bits.get(name))
