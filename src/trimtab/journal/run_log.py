"""RunLog: a run directory written from any Python program, without torch.

    with trimtab.record("runs/x1") as run:
        for step, batch in enumerate(batches):
            ...
            run.log(step=step, loss=loss, grad_norm=norm, lr=rate)

The observer judges the run meanwhile, as it judges every other; nothing is protected. Names are
those of docs/journal.md: `loss`, `grad_norm` (before clipping), `lr`, `tokens`, `eval_loss`,
`loss_scale`; any other one is a metric of the user.
"""

import os
import platform
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from trimtab._version import __version__
from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.errors import ConfigError
from trimtab.core.incidents import Incident
from trimtab.core.log import log, log_to_stderr_by_default
from trimtab.journal.directory import RunDirectory
from trimtab.journal.exit_request import announce_run
from trimtab.journal.observer_process import (
    OBSERVER_SETTING,
    Callbacks,
    NoObserver,
    ObserverProcess,
)
from trimtab.journal.reader import read_journal
from trimtab.journal.writer import JournalWriter

FACTS = ("model", "num_parameters", "optimizers", "dtype", "seed", "link", "world", "beta2")
"""What a user may state about a run."""

OBSERVER_SECONDS = 1.0
"""From one look at the observer's pipe to the next."""

CATCH_UP_SECONDS = 10.0
"""How long closing waits until the last records are judged."""


class RunLog:
    """Writes what a training loop measures, one record a step; a bug in here never stops the loop.

    Use one in the first process of a run alone.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        facts: Mapping[str, Any] | None = None,
        on_incident: Callable[[Incident], None] | None = None,
        observer: bool = True,
    ) -> None:
        """Start a run, or continue it: what is known of it is kept.

        Args:
            run_dir: The folder of the run; everything is written to its `trimtab/` folder.
            facts: What is known of the run, for the post-mortem: "model", "num_parameters",
                "optimizers", "dtype" (fp32, bf16, fp16, fp8), "seed", "link", "world" (ranks),
                "beta2".
            on_incident: Called with an incident when it opens, changes or closes, up to a second
                later; in a thread of its own.
            observer: Whether to start an observer, a process of its own that judges the run.
                Without one `trimtab observe RUN` does the same.
        """
        log_to_stderr_by_default()
        unknown = [name for name in facts or () if name not in FACTS]
        if unknown:
            raise ConfigError(f"facts has no {unknown[0]!r}; known: {', '.join(FACTS)}")
        self._run = RunDirectory(Path(run_dir).absolute())
        is_known = self._run.exists()
        past = read_journal(self._run, find_damage=False).block if is_known else Block.empty()
        self._attempt = int(past.attempt[-1]) if len(past) else 0
        self._last_step = int(past.step[-1]) if len(past) else None
        self._is_resumed = bool(len(past))
        self._journal = JournalWriter(self._run)
        self._observer: ObserverProcess | NoObserver = NoObserver()
        self._last_clock: float | None = None
        self._last_tick, self._num_records, self._next_check = -1, 0, 0.0
        self._reported: set[str] = set()
        self._has_failed = self._is_closed = False
        config = Config()
        try:
            self._run.write_manifest(_manifest(config, facts or {}))
            announce_run(self._run)
            if observer and os.environ.get(OBSERVER_SETTING) != "off":
                self._observer = ObserverProcess(
                    self._run,
                    Callbacks(on_incident),
                    lambda incident: None,
                    stall_seconds=config.ship.stall_seconds,
                )
        except BaseException:
            self._journal.close("could not start", seconds=1.0)
            raise
        log.info("trimtab records this run; see: trimtab observe %s", Path(run_dir))
        ending = "the program ended without closing the run"
        self._finalizer = weakref.finalize(self, self._journal.close, ending)

    @property
    def run_dir(self) -> Path:
        """The folder of the run, for `trimtab.diagnose`."""
        return self._run.root

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents that the observer has found so far."""
        return self._observer.incidents

    def log(self, *, step: int, **numbers: Any) -> None:
        """Record the numbers of one step; a step before the last one is another attempt at it.

        Anything that `float` takes is a number, None is left out. What is on a device is read, so
        the loop waits for it.
        """
        self._guarded("log", self._append, step, numbers)

    def event(self, kind: str, /, step: int | None = None, **facts: Any) -> None:
        """Record something that happened before the next step: an evaluation, a new data mix."""
        at = step if step is not None else (self._last_step or 0)
        self._guarded("event", self._journal.add_event, kind, at, facts)

    def close(self, how: str = "closed") -> None:
        """Write what is left, and wait, bounded, until the observer has judged it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._finalizer.detach()
        self._guarded("close", self._end, how)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close("closed" if kind is None else f"raised {kind.__name__}")

    def _append(self, step: Any, numbers: Mapping[str, Any]) -> None:
        at = int(step)
        if self._last_step is not None and at <= self._last_step:
            self._attempt += 1
        if self._is_resumed:
            self._is_resumed = False
            self._journal.event("resume", at, last_step=self._last_step)
        clock = time.time()
        found = {signals.CLOCK: clock}
        for name, value in numbers.items():
            if value is not None and (number := self._number(name, value)) is not None:
                found[name] = number
        if self._last_clock is not None and clock > self._last_clock:
            seconds = clock - self._last_clock
            found.setdefault(signals.STEP_SECONDS, seconds)
            if signals.TOKENS in found:
                found.setdefault(signals.TOKENS_PER_SECOND, found[signals.TOKENS] / seconds)
        self._last_clock, self._last_step = clock, at
        self._last_tick = self._journal.append(at, found, self._attempt)
        self._num_records += 1
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + OBSERVER_SECONDS
            self._observer.check()

    def _number(self, name: str, value: Any) -> float | None:
        try:
            if not isinstance(value, str | bytes):
                return float(value)
            raise TypeError
        except (TypeError, ValueError, OverflowError):
            if name not in self._reported and len(self._reported) < 256:
                self._reported.add(name)
                log.warning("trimtab: %r is not a number but %s", name, type(value).__name__)
            return None

    def _end(self, how: str) -> None:
        self._journal.close(how)
        self._observer.catch_up(self._last_tick, CATCH_UP_SECONDS)
        self._observer.close()
        home = self._run.home
        if self._journal.dropped:
            log.warning("trimtab: the journal has lost %d records", self._journal.dropped)
        log.info("trimtab: ended (%s): %d steps recorded; %s", how, self._num_records, home)

    def _guarded(self, place: str, inside: Callable[..., None], *args: Any) -> None:
        """Let no error of trimtab out into the loop; the first one is logged."""
        try:
            inside(*args)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                words = "trimtab: recording failed in run.%s; training continues\n%s"
                log.error(words, place, traceback.format_exc().strip())


def record(
    run_dir: str | Path,
    *,
    facts: Mapping[str, Any] | None = None,
    on_incident: Callable[[Incident], None] | None = None,
    observer: bool = True,
) -> RunLog:
    """Record a run of any program; use it as a context manager. The arguments are `RunLog`'s."""
    return RunLog(run_dir, facts=facts, on_incident=on_incident, observer=observer)


def _manifest(config: Config, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trimtab": __version__,
        "python": platform.python_version(),
        "world": 1,
        "config": config.to_dict(),
        "mode": "observe",
        **facts,
    }
