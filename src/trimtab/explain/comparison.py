"""Comparison: how far apart a signal of two runs is, and from which step on they differ.

Trailing means are compared: at every common step the mean of the last values of one run with that
of the other, over the same steps. Of a step that was done twice, the last time counts.

Verification: what must hold in a run after a fix, as a file that can be checked.

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
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Block, BoolArray, FloatArray, IntArray
from trimtab.core.errors import ConfigError, LogError
from trimtab.core.signals import CLOCKS, GRAD_NORM, HASHES, LOSS, LR
from trimtab.core.text import counted, digits, listed
from trimtab.detect.tools.series import align, last_rows

MAX_WINDOW = 50
"""The longest trailing mean. Source: post-mortems average 50 records before a spike."""

SHARE = 10
"""The mean is over a tenth of the records if they are few, so that ten means do not overlap."""

_FIRST = (LR, LOSS, GRAD_NORM)
"""Named before other signals that differ from the same step on."""

_HUGE = 1e300
"""Values are clipped to it, so that no sum of them overflows."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The steps from `first` to `last`, both included; None is no bound."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def parse(cls, text: str, name: str) -> "StepWindow":
        """Return the steps that FIRST:LAST means; either may be left out. Raises ConfigError."""
        first, colon, last = (part.strip() for part in text.partition(":"))
        if not colon or not all(part.isdecimal() for part in (first, last) if part):
            raise ConfigError(f"{name} takes FIRST:LAST, such as 300:400, got {text[:40]!r}")
        # A step is an int64; a number of more digits than that is beyond every step.
        return cls(*(min(int(part[:19]), 2**63 - 1) if part else None for part in (first, last)))

    def rows(self, steps: IntArray) -> slice:
        """Return where the steps of the window are among steps that rise."""
        start = 0 if self.first is None else int(np.searchsorted(steps, self.first))
        end = (
            len(steps)
            if self.last is None
            else int(np.searchsorted(steps, self.last, side="right"))
        )
        return slice(start, max(start, end))

    def __str__(self) -> str:
        if self.first is None:
            return "" if self.last is None else f" up to step {self.last}"
        return f" from step {self.first}" + ("" if self.last is None else f" to {self.last}")


EVERY_STEP = StepWindow()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How far apart a signal of two runs is."""

    signal: str
    tolerance: float
    first_step: int
    last_step: int
    num_common: int
    """Steps at which both runs have a value."""
    num_finite: int
    """Of these, where both are finite: only these enter the means."""
    window: int
    """Records in a trailing mean."""
    mean: float | None
    """Mean of the absolute difference of the trailing means; None if no value is finite in both."""
    worst: float | None
    worst_step: int | None
    num_beyond: int
    """Trailing means that differ by more than the tolerance."""
    parted_at: int | None
    """The step from which the difference stays over the tolerance; None if it ends within."""
    difference_at_end: float | None
    """Trailing mean of the run minus that of the base."""
    num_broken: int
    """Steps at which one value is finite and the other is not."""
    broken_at: int | None
    """The first of them."""

    @property
    def is_within(self) -> bool:
        """Whether the runs agree: close on average and at the end, and finite at the same steps."""
        near = self.mean is not None and self.mean <= self.tolerance
        return near and self.parted_at is None and not self.num_broken


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first common step at which two runs have other values of a signal."""

    signal: str
    step: int
    ours: float
    theirs: float


def compare_signal(
    run: Block, base: Block, tolerance: float, window: StepWindow = EVERY_STEP, signal: str = LOSS
) -> Comparison:
    """Compare a signal of two runs in a window; raises LogError if they share no step with it."""
    steps, ours, theirs = _common(run, base, window, signal)
    broken = np.isfinite(ours) != np.isfinite(theirs)
    ends, differences, num_finite = _trailing(steps, ours, theirs)
    if not num_finite and not broken.any():
        raise LogError(f"neither {signal} is finite at any common step; nothing can be compared")
    sizes = np.abs(differences)
    worst = int(np.argmax(sizes)) if len(sizes) else None
    beyond = sizes > tolerance
    return Comparison(
        signal=signal,
        tolerance=tolerance,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        num_common=len(steps),
        num_finite=num_finite,
        window=_window(num_finite),
        mean=float(sizes.mean()) if len(sizes) else None,
        worst=None if worst is None else float(sizes[worst]),
        worst_step=None if worst is None else int(ends[worst]),
        num_beyond=int(np.count_nonzero(beyond)),
        parted_at=_parted(ends, beyond),
        difference_at_end=float(differences[-1]) if len(differences) else None,
        num_broken=int(np.count_nonzero(broken)),
        broken_at=int(steps[np.argmax(broken)]) if broken.any() else None,
    )


def trailing_differences(
    run: Block, base: Block, window: StepWindow, signal: str = LOSS
) -> tuple[IntArray, FloatArray]:
    """Return the common steps, and the trailing mean of the run minus that of the base."""
    ends, differences, _ = _trailing(*_common(run, base, window, signal))
    return ends, differences


def first_differences(run: Block, base: Block, window: StepWindow) -> list[FirstDifference]:
    """Return where each signal of both runs first differs, the earliest first.

    Values are compared exactly: two runs that should be equal are equal to the last bit. Clocks
    and speeds differ between any two runs and are left out, checksums are compared by
    `compare_states`.
    """
    found = []
    for signal in run.columns:
        if signal in CLOCKS or signal in HASHES or not base.column(signal).recorded:
            continue
        try:
            steps, ours, theirs = _common(run, base, window, signal)
        except LogError:
            continue
        differs = ~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        if differs.any():
            row = int(np.argmax(differs))
            values = float(ours[row]), float(theirs[row])
            found.append(
                FirstDifference(
                    signal=signal, step=int(steps[row]), ours=values[0], theirs=values[1]
                )
            )
    return sorted(found, key=lambda one: (one.step, one.signal not in _FIRST))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """Where the checksums of weights and optimizer of two runs first differ."""

    num_compared: int
    """Common steps with checksums."""
    last_equal: int | None
    """The last step before the first difference, or of all, at which everything is equal."""
    differs_at: int | None
    """The first step at which something differs; None if nothing does."""
    signals: tuple[str, ...] = ()
    """What differs there."""


def compare_states(run: Block, base: Block, window: StepWindow) -> StateDifference | None:
    """Compare the checksums of two runs that should be equal; None if they have none in common."""
    found: dict[int, list[str]] = {}
    for name in HASHES:
        try:
            steps, ours, theirs = _common(run, base, window, name)
        except LogError:
            continue
        for step, is_equal in zip(steps, ours == theirs, strict=True):
            found.setdefault(int(step), []).extend([] if is_equal else [name])
    if not found:
        return None
    first = min((step for step, names in found.items() if names), default=None)
    equal = [step for step in found if first is None or step < first]
    return StateDifference(
        num_compared=len(found),
        last_equal=max(equal, default=None),
        differs_at=first,
        signals=() if first is None else tuple(found[first]),
    )


def _window(num_finite: int) -> int:
    return min(max(num_finite // SHARE, 1), MAX_WINDOW)


def _common(
    run: Block, base: Block, window: StepWindow, signal: str
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return the steps that both runs have, and the values of both."""
    (ours, mine), (theirs, other) = values_by_step(run, signal), values_by_step(base, signal)
    steps = ours
    if not np.array_equal(ours, theirs):
        is_common, places = align(ours, theirs)
        steps, mine, other = ours[is_common], mine[is_common], other[places[is_common]]
    rows = window.rows(steps)
    for name, block, own in (("first", run, ours), ("second", base, theirs)):
        if not len(own):
            raise LogError(f"the {name} run has no {signal!r}; it has {listed(block.columns)}")
    if rows.start == rows.stop:
        raise LogError(
            f"the runs have no step in common{window}: the first has {signal} at steps "
            f"{_span(ours)}, the second at {_span(theirs)}; compare logs that were written "
            "at the same steps"
        )
    return steps[rows], mine[rows], other[rows]


def values_by_step(block: Block, signal: str) -> tuple[IntArray, FloatArray]:
    """Return the steps with a value, in order, and the value that was recorded last at each.

    A run that went back has no longer what it had recorded beyond the step that it went back to.
    """
    column = block.column(signal)
    steps, values, chosen = block.step, column.values, column.present.copy()
    for attempt in np.unique(block.attempt)[1:]:
        began = steps[block.attempt == attempt].min()
        chosen &= (block.attempt >= attempt) | (steps < began)
    if not chosen.all():
        steps, values = steps[chosen], values[chosen]
    if not (steps[1:] > steps[:-1]).all():  # a long run that never went back needs no copies
        rows = last_rows(steps)
        steps, values = steps[rows], values[rows]
    return steps, values


def _trailing(
    steps: IntArray, ours: FloatArray, theirs: FloatArray
) -> tuple[IntArray, FloatArray, int]:
    """Return the trailing means of the differences, which are the differences of the means.

    Also the step at which each ends, and how many values are finite in both.
    """
    finite = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = (np.clip(values[finite], -_HUGE, _HUGE) for values in (ours, theirs))
    ends, differences, length = steps[finite], ours - theirs, _window(len(ours))
    if len(ends):
        ends = ends[length - 1 :]
        differences = np.convolve(differences, np.full(length, 1 / length), "valid")
    return ends, differences, len(ours)


def _parted(ends: IntArray, beyond: BoolArray) -> int | None:
    if not len(beyond) or not beyond[-1]:
        return None
    # They differ for good after the last mean within the tolerance.
    within = np.flatnonzero(~beyond)
    return int(ends[within[-1] + 1] if len(within) else ends[0])


def _span(steps: IntArray) -> str:
    return f"{steps[0]} to {steps[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a signal must satisfy: a largest value, a least mean, or a distance from a base run."""

    signal: str = LOSS
    first: int | None = None
    """The first step that is checked; None is no bound."""
    last: int | None = None
    max: float | None = None
    mean_max: float | None = None
    """The largest mean: a level can be told where single values are noisy."""
    mean_min: float | None = None
    """The least mean of its finite values."""
    within: float | None = None

    @property
    def window(self) -> StepWindow:
        """The steps that are checked."""
        return StepWindow(self.first, self.last)

    @property
    def wanted(self) -> str:
        """The check in words: "grad_norm at most 3 from step 300 to 400"."""
        name = next(name for name in _LIMITS if getattr(self, name) is not None)
        limit = _LIMITS[name].format(getattr(self, name))
        return f"{self.signal} {limit}{self.window}"

    def to_toml(self) -> str:
        """Return the check as a table of a file of checks."""
        lines = [
            # A string of JSON is one of TOML as well, and so is a number of Python.
            f"{key} = {json.dumps(value) if isinstance(value, str) else repr(value)}"
            for key, value in asdict(self).items()
            if value is not None
        ]
        return "\n".join(["[[check]]", *lines])


_LIMITS = {
    "max": "at most {:g}",
    "mean_max": "on average at most {:g}",
    "mean_min": "on average at least {:g}",
    "within": "within {:g} of the base",
}
"""In words, by name; a check has one of them."""
_KEYS = tuple(field.name for field in fields(Check))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Whether a check holds, and what was found."""

    check: Check
    passed: bool
    found: str


def apply_check(check: Check, run: Block, base: Block | None) -> CheckResult:
    """Check a run. What cannot be checked has not passed, and says why."""
    try:
        if check.max is not None:
            passed, text = _check_max(check, check.max, run)
        elif check.mean_max is not None:
            mean = float(_checked(check, run)[1].mean())
            passed, text = mean <= check.mean_max, digits(mean)  # NaN is beyond every limit
        elif check.mean_min is not None:
            passed, text = _check_mean(check, check.mean_min, run)
        else:
            passed, text = _check_distance(check, run, base)
    except LogError as error:
        passed, text = False, str(error)
    return CheckResult(check=check, passed=passed, found=f"{check.wanted}: {text}")


def _check_distance(check: Check, run: Block, base: Block | None) -> tuple[bool, str]:
    if base is None:
        raise LogError("no base run was given")
    found = compare_signal(run, base, check.within or 0.0, check.window, check.signal)
    if found.num_broken:
        return False, f"only one of the runs is finite at step {found.broken_at:,}"
    text = f"{digits(found.mean)} on average, {digits(found.worst)} at most"
    return found.is_within, text


def _checked(check: Check, run: Block) -> tuple[IntArray, FloatArray]:
    steps, values = values_by_step(run, check.signal)
    rows = check.window.rows(steps)
    if rows.start == rows.stop:
        raise LogError("no value is recorded there")
    return steps[rows], values[rows]


def _check_max(check: Check, limit: float, run: Block) -> tuple[bool, str]:
    steps, values = _checked(check, run)
    beyond = ~(values <= limit)  # NaN is beyond every limit
    if not beyond.any():
        row = int(np.argmax(values))
        return True, f"largest {digits(float(values[row]))} at step {steps[row]:,}"
    row = int(np.argmax(beyond))
    text = f"{digits(float(values[row]))} at step {steps[row]:,}"
    more = int(np.count_nonzero(beyond)) - 1
    return False, text + (f", and beyond it at {counted(more, 'more step')}" if more else "")


def _check_mean(check: Check, limit: float, run: Block) -> tuple[bool, str]:
    values = _checked(check, run)[1]
    values = values[np.isfinite(values)]
    if not len(values):
        raise LogError("no finite value is recorded there")
    mean = float(values.mean())
    return mean >= limit, f"{digits(mean)} on average of {counted(len(values), 'step')}"


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
    limits = {key: _number(entry, key, where) for key in _LIMITS}
    first, last = (_step(entry, key, where) for key in ("first", "last"))
    if sum(limit is not None for limit in limits.values()) != 1:
        raise ConfigError(f"{where}: a check has one of {', '.join(_LIMITS)}")
    return Check(signal=signal, first=first, last=last, **limits)


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
