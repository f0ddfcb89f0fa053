"""Make every check on one device; a check that raises has failed, and the others still run.

What each mode costs is measured as well.
"""

import contextlib
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trimtab._version import __version__
from trimtab.core.errors import ConfigError
from trimtab.selftest.loop import CannotCheck, CheckFailed, Training, batches
from trimtab.selftest.promises import check_gate, check_host_reads, check_same_bits, check_undo
from trimtab.selftest.two_ranks import check_two_ranks

# What each mode costs: a step with a guard against the same step without
#
# All loops train the same model in turns, so that other work on the machine slows all of them
# alike. A turn is as long as the interval of telemetry and snapshots, so that each turn has one.

MODES = ("observe", "protect", "recover")
TURN_STEPS, TURNS = 10, 5


class Size(NamedTuple):
    """A model and its batches."""

    width: int
    depth: int
    rows: int


SIZES = {"cuda": Size(768, 6, 4096), "cpu": Size(256, 4, 128)}
"""A step of about 20 ms. Chosen: a guard costs the same time in a step of any length, so that of a
tiny step would say more about Python than about a training run."""


class Cost(NamedTuple):
    """The milliseconds of a step without a guard, and what it takes with one, by mode."""

    bare_ms: float
    ratios: dict[str, float]
    """How many times as long a step is."""
    host_ms: dict[str, float]
    """Inside the guard, per step."""
    gpu_ms: dict[str, float]
    """Between events around the guard, per step; empty on other devices."""

    def lines(self) -> list[str]:
        modes = ", ".join(f"{mode} x{ratio:.2f}" for mode, ratio in self.ratios.items())
        host, gpu = (
            ", ".join(f"{mode} {ms:.2f} ms" for mode, ms in times.items())
            for times in (self.host_ms, self.gpu_ms)
        )
        return [
            f"cost  a step of {self.bare_ms:.1f} ms: {modes}",
            f"cost  inside the guard: {host}; on the GPU: {gpu or 'nothing was measured on one'}",
        ]


def _now(device: torch.device) -> Any:
    """Return an event of a GPU, behind what it was given before; None on other devices."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class GuardClock:
    """The time inside what a training loop calls of a guard."""

    def __init__(self, guard: Any, optimizer: Any, device: torch.device) -> None:
        self._device = device
        self._clock = time.perf_counter if device.type == "cuda" else time.thread_time
        self.seconds = 0.0
        self.events: list[tuple[Any, Any]] = []
        guard.record = self._timed(guard.record)
        for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
            hooks.update({key: self._timed(hook) for key, hook in hooks.items()})

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began, event = self._clock(), _now(self._device)
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += self._clock() - began
                self.events.append((event, _now(self._device)))

        return timed


def measure_cost(device: torch.device, folder: Path) -> Cost:
    """Train without a guard and in each mode, and compare the times."""
    size = SIZES.get(device.type, SIZES["cpu"])
    data = [batch.to(device) for batch in batches(TURN_STEPS, size.rows, size.width)]
    # CPU time is that of this process alone; a GPU's time only passes on the wall.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds = dict.fromkeys(("bare", *MODES), 0.0)
    runs = {name: Training(device=device, width=size.width, depth=size.depth) for name in seconds}
    with ExitStack() as stack:
        # Threads that wait for each other on a busy machine would be counted as work.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        guards: dict[str, Any] = {
            mode: stack.enter_context(runs[mode].watch(folder / mode, mode)) for mode in MODES
        }
        for name, run in runs.items():  # creates state
            for batch in data:
                run.step(batch, guards.get(name))
        inside = {m: GuardClock(guards[m], runs[m].optimizer, device) for m in MODES}
        for _ in range(TURNS):
            for name, run in runs.items():
                begin = clock()
                for batch in data:
                    run.step(batch, guards.get(name))
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds[name] += clock() - begin
    steps = TURN_STEPS * TURNS
    on_gpu = inside if device.type == "cuda" else {}
    return Cost(
        round(1e3 * seconds["bare"] / steps, 3),
        {mode: round(seconds[mode] / seconds["bare"], 3) for mode in MODES},
        {mode: round(1e3 * one.seconds / steps, 3) for mode, one in inside.items()},
        {
            mode: round(sum(begin.elapsed_time(end) for begin, end in one.events) / steps, 3)
            for mode, one in on_gpu.items()
        },
    )


# The checks


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "pass"
    FAILED = "FAIL"
    SKIPPED = "skip"
    """This device cannot make the check; the reason says why."""


class SelfTestResult(NamedTuple):
    """How one check ended, and what was compared or counted, or is wrong."""

    name: str
    outcome: Outcome
    reason: str
    seconds: float

    def line(self) -> str:
        return f"{self.outcome.value}  {self.name}: {self.reason} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """All checks on one device."""

    device: str
    device_name: str
    python: str
    torch: str
    trimtab: str
    checks: tuple[SelfTestResult, ...]
    cost: Cost | None
    """None if the device could not be measured."""

    @property
    def has_passed(self) -> bool:
        return all(check.outcome is not Outcome.FAILED for check in self.checks)

    def count(self, outcome: Outcome) -> int:
        return sum(check.outcome is outcome for check in self.checks)

    def summary(self) -> list[str]:
        counts = (
            f"{self.count(Outcome.PASSED)} passed, {self.count(Outcome.FAILED)} failed, "
            f"{self.count(Outcome.SKIPPED)} skipped on {self.device} ({self.device_name}), "
            f"torch {self.torch}, Python {self.python}, trimtab {self.trimtab}"
        )
        costs = ["cost  could not be measured"] if self.cost is None else self.cost.lines()
        return [*costs, counts]

    def to_dict(self) -> dict[str, Any]:
        checks = [
            check._asdict()
            | {"outcome": check.outcome.name.lower(), "seconds": round(check.seconds, 3)}
            for check in self.checks
        ]
        cost = None if self.cost is None else self.cost._asdict()
        facts = {one.name: getattr(self, one.name) for one in fields(self)}
        return facts | {"passed": self.has_passed, "cost": cost, "checks": checks}


Check = Callable[[torch.device, Path], str]

CHECKS: dict[str, Check] = {
    "observe changes no bit, fp32": partial(check_same_bits, autocast=None),
    "observe changes no bit, bf16": partial(check_same_bits, autocast=torch.bfloat16),
    "observe changes no bit, fp16 with scaler": partial(check_same_bits, autocast=torch.float16),
    "observe reads nothing on the host": partial(check_host_reads, mode="observe"),
    "protect reads nothing on the host": partial(check_host_reads, mode="protect"),
    "recover reads nothing on the host": partial(check_host_reads, mode="recover"),
    "the gate keeps a NaN out": check_gate,
    "recover restores every bit": check_undo,
    "two ranks agree": check_two_ranks,
}


def run_selftest(
    device: str | None = None, on_result: Callable[[SelfTestResult], None] = lambda result: None
) -> SelfTest:
    """Make every check; `on_result` is called after each. Raises ConfigError for a bad device."""
    chosen = choose_device(device)
    results = []
    with _deterministic(), tempfile.TemporaryDirectory(prefix="trimtab-selftest-") as folder:
        for number, (name, check) in enumerate(CHECKS.items()):
            results.append(_make(name, check, chosen, Path(folder) / str(number)))
            on_result(results[-1])
        cost = None
        with _collected_log(), suppress(Exception):  # it is no promise: nothing fails without it
            cost = measure_cost(chosen, Path(folder) / "cost")
    return SelfTest(
        device=str(chosen),
        device_name=_device_name(chosen),
        python=platform.python_version(),
        torch=torch.__version__,
        trimtab=__version__,
        checks=tuple(results),
        cost=cost,
    )


def choose_device(name: str | None) -> torch.device:
    """Return the device of this name; by default the GPU if there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"the device {name!r} cannot be used here: {first}") from error
    return device


def _make(name: str, check: Check, device: torch.device, folder: Path) -> SelfTestResult:
    begin = time.monotonic()
    with _collected_log() as lines:
        try:
            outcome, reason = Outcome.PASSED, check(device, folder)
        except CannotCheck as error:
            outcome, reason = Outcome.SKIPPED, str(error)
        except CheckFailed as error:
            outcome, reason = Outcome.FAILED, str(error)
        except Exception as error:
            outcome, reason = Outcome.FAILED, f"{type(error).__name__}: {error}"
    if lines and outcome is not Outcome.SKIPPED:  # a part of the guard that failed is a failure
        outcome, reason = Outcome.FAILED, f"{reason}; the guard logged: {lines[0]}"
    reason = " ".join(reason.split())
    return SelfTestResult(name, outcome, reason, time.monotonic() - begin)


@contextlib.contextmanager
def _collected_log() -> Iterator[list[str]]:
    """Collect the errors that trimtab logs, and print nothing: a discarded step is no news."""
    logger = logging.getLogger("trimtab")
    lines: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: lines.append(  # type: ignore[method-assign]
        record.getMessage().splitlines()[0]
    )
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Use deterministic algorithms: two runs must have the same bits to be compared."""
    # cuBLAS reads it when it starts. Source: torch.use_deterministic_algorithms.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    was = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return platform.machine() or "unknown machine"
