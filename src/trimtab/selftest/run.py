"""Make every check on one device; a check that raises has failed, and the others still run.

What each mode costs is measured as well.
"""

import contextlib
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
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
TURN_STEPS, TURNS = 10, 4
"""The first turn creates state, and does not count."""


class Size(NamedTuple):
    """A model and its batches."""

    width: int
    depth: int
    rows: int


SIZES = {"cuda": Size(768, 6, 4096), "cpu": Size(256, 4, 128)}
"""A step of about 20 ms. Chosen: a guard costs the same time in a step of any length, so that of a
tiny step would say more about Python than about a training run."""


class Cost(NamedTuple):
    """The milliseconds of a step without a guard, and how many times as long it is with one."""

    bare_ms: float
    ratios: dict[str, float]

    def line(self) -> str:
        modes = ", ".join(f"{mode} x{ratio:.2f}" for mode, ratio in self.ratios.items())
        return f"cost  a step of {self.bare_ms:.1f} ms: {modes}"


def measure_cost(device: torch.device, folder: Path) -> Cost:
    """Train without a guard and in each mode, and compare the times."""
    size = SIZES.get(device.type, SIZES["cpu"])
    data = [batch.to(device) for batch in batches(TURN_STEPS, size.rows, size.width)]
    # CPU time is that of this process alone; a GPU's time only passes on the wall.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in ("bare", *MODES)}
    runs = {name: Training(device=device, width=size.width, depth=size.depth) for name in seconds}
    with ExitStack() as stack:
        # Threads that wait for each other on a busy machine would be counted as work.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        guards: dict[str, Any] = {
            mode: stack.enter_context(runs[mode].watch(folder / mode, mode)) for mode in MODES
        }
        for _ in range(TURNS):
            for name, run in runs.items():
                begin = clock()
                for batch in data:
                    run.step(batch, guards.get(name))
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds[name].append(clock() - begin)
    medians = {name: statistics.median(turns[1:]) for name, turns in seconds.items()}
    ratios = {mode: round(medians[mode] / medians["bare"], 3) for mode in MODES}
    return Cost(round(1e3 * medians["bare"] / TURN_STEPS, 3), ratios)


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
        cost = "cost  could not be measured" if self.cost is None else self.cost.line()
        return [cost, counts]

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "device_name": self.device_name,
            "python": self.python,
            "torch": self.torch,
            "trimtab": self.trimtab,
            "passed": self.has_passed,
            "cost": self.cost._asdict() if self.cost is not None else None,
            "checks": [
                {
                    "name": name,
                    "outcome": outcome.name.lower(),
                    "reason": reason,
                    "seconds": round(seconds, 3),
                }
                for name, outcome, reason, seconds in self.checks
            ],
        }


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
        cost = _measure_cost(chosen, Path(folder) / "cost")
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


def _measure_cost(device: torch.device, folder: Path) -> Cost | None:
    """Return the cost, if it can be measured: it is no promise, so nothing fails without it."""
    with _collected_log():
        try:
            return measure_cost(device, folder)
        except Exception:
            return None


@contextlib.contextmanager
def _collected_log() -> Iterator[list[str]]:
    """Collect the errors that trimtab logs, and print nothing: a discarded step is no news."""
    logger = logging.getLogger("trimtab")
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                lines.append(record.getMessage().splitlines()[0])

    handler = Keep()
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
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
