"""Verification: what must hold in a run after a fix, as a file that can be checked.

    [[check]]
    signal = "grad_norm"
    first = 300
    last = 400
    max = 3.0

    [[check]]
    last = 311
    within = 0.05

The first check reads: the gradient norm is finite and at most 3.0 in steps 300 to 400. The second:
up to step 311 the loss differs by at most 0.05 from that of the base run.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.errors import ConfigError, LogError
from trimtab.core.signals import LOSS
from trimtab.core.text import counted, digits
from trimtab.explain.comparison import EVERY_STEP, StepWindow, compare_signal, values_by_step

_KEYS = ("signal", "first", "last", "max", "within")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one signal of a run must satisfy: a largest value, or a distance from a base run."""

    signal: str = LOSS
    window: StepWindow = EVERY_STEP
    max: float | None = None
    within: float | None = None

    @property
    def wanted(self) -> str:
        """The check in words: "grad_norm at most 3 from step 300 to 400"."""
        limit = (
            f"within {self.within:g} of the base" if self.max is None else f"at most {self.max:g}"
        )
        return f"{self.signal} {limit}{self.window}"

    def to_toml(self) -> str:
        """Return the check as a table of a file of checks."""
        values = (self.signal, self.window.first, self.window.last, self.max, self.within)
        lines = [
            # A string of JSON is one of TOML as well, and so is a number of Python.
            f"{key} = {_toml(value)}"
            for key, value in zip(_KEYS, values, strict=True)
            if value is not None
        ]
        return "\n".join(["[[check]]", *lines])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Whether a check holds, and what was found."""

    check: Check
    passed: bool
    found: str


def apply_check(check: Check, run: Block, base: Block | None) -> CheckResult:
    """Check a run. What cannot be checked has not passed, and says why."""
    if check.max is not None:
        return _check_max(check, check.max, run)
    wanted = check.wanted
    if base is None:
        return CheckResult(check=check, passed=False, found=f"{wanted}: no base run was given")
    try:
        found = compare_signal(run, base, check.within or 0.0, check.window, check.signal)
    except LogError as error:
        return CheckResult(check=check, passed=False, found=f"{wanted}: {error}")
    if found.num_broken:
        text = f"only one of the runs is finite at step {found.broken_at:,}"
    else:
        text = f"{digits(found.mean)} on average, {digits(found.worst)} at most"
    return CheckResult(check=check, passed=found.is_within, found=f"{wanted}: {text}")


def _check_max(check: Check, limit: float, run: Block) -> CheckResult:
    steps, values = values_by_step(run, check.signal)
    rows = check.window.rows(steps)
    steps, values = steps[rows], values[rows]
    wanted = check.wanted
    if not len(values):
        return CheckResult(check=check, passed=False, found=f"{wanted}: no value is recorded there")
    beyond = ~(values <= limit)  # NaN is beyond every limit
    if beyond.any():
        row = int(np.argmax(beyond))
        text = f"{digits(float(values[row]))} at step {steps[row]:,}"
        more = int(np.count_nonzero(beyond)) - 1
        text += f", and beyond it at {counted(more, 'more step')}" if more else ""
    else:
        row = int(np.argmax(values))
        text = f"largest {digits(float(values[row]))} at step {steps[row]:,}"
    return CheckResult(check=check, passed=not beyond.any(), found=f"{wanted}: {text}")


def format_checks(checks: Iterable[Check], heading: str) -> str:
    return "\n\n".join([f"# {heading}", *(check.to_toml() for check in checks)]) + "\n"


def read_checks(path: Path) -> list[Check]:
    """Read a file of checks; raises ConfigError that names the check at fault."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of checks: {error}") from error
    entries = table.get("check")
    if not isinstance(entries, list) or not entries or set(table) != {"check"}:
        raise ConfigError(f"{path} has no [[check]]; a file of checks has nothing else")
    return [_parse(entry, f"{path}, check {n}") for n, entry in enumerate(entries, start=1)]


def _parse(entry: object, where: str) -> Check:
    if not isinstance(entry, Mapping) or not set(entry) <= set(_KEYS):
        raise ConfigError(f"{where}: the keys of a check are {', '.join(_KEYS)}")
    signal = entry.get("signal", LOSS)
    if not isinstance(signal, str):
        raise ConfigError(f"{where}: signal is a name, got {signal!r}")
    limits = {key: _number(entry, key, where) for key in ("max", "within")}
    first, last = (_step(entry, key, where) for key in ("first", "last"))
    if (limits["max"] is None) == (limits["within"] is None):
        raise ConfigError(f"{where}: a check has either max or within")
    return Check(signal=signal, window=StepWindow(first, last), **limits)


def _number(entry: Mapping[str, Any], key: str, where: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ConfigError(f"{where}: {key} is a finite number, got {value!r}")
    return float(value)


def _step(entry: Mapping[str, Any], key: str, where: str) -> int | None:
    value = entry.get(key)
    if value is not None and type(value) is not int:
        raise ConfigError(f"{where}: {key} is a whole number of steps, got {value!r}")
    return value


def _toml(value: float | str) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
