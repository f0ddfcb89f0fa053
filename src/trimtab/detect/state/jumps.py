"""Signals of model and optimizer that jump: the test, a rule for each signal, the detector.

StateJumps --> rule_of(signal) --> JumpTest: larger than all recent changes?
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, BoolArray, FloatArray, IntArray
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.state import Stateful, StatefulDict
from trimtab.detect.tools.series import Point, over_neighbours

# JumpTest: a change from one record to the next that is far larger than all recent changes.
#
#     changes:   . : . , : . ; . : .  ...  . : , .  |    compared with the largest of the last 128
#                [ --- 8 cells of 16 changes --- ][ this cell ]
#
# The test knows nothing of a signal's noise but its largest recent change: it assumes no
# distribution, and a heavy tail raises the limit by itself. A jump enters the past only as large as
# the limit, so it is reported once, its new value is normal from then on, and it does not hide the
# next one.

CHANGES_PER_CELL, CELLS_REMEMBERED = 16, 8
"""Changes in a cell, and cells that are remembered. Source: measured in the lab; a memory of 128
changes keeps healthy runs under 3 times the largest change, half of it does not."""

MIN_CELLS = 4
"""Cells that must be known before anything is judged."""

MIN_EARLY = 8
"""Changes that must be known before one is judged by its early floor."""

_VALUES_AT_ONCE = 8192
"""Values that are judged at once: they stay in the processor's cache."""

RETURNED = 1.01
"""Times the highest value so far up to which a signal has returned to where it was."""

_MAX_CHANGE = 1e12
"""Relative changes beyond this count as this: a limit must stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpLimits:
    """How far is too far."""

    up: float | None
    """Times the largest recent change; None where a rise means nothing."""
    down: float | None
    """The same for a fall."""
    floor: float
    """Relative change under which nothing is a jump, however calm the signal is."""
    early_floor: float = math.inf
    """The same for a fall among the first changes, where not even 64 are known."""
    early_rise: float = math.inf
    """The same for a rise among the first changes."""


class Jump(NamedTuple):
    """How large a change was, and how large the largest before it."""

    change: float
    """Relative to the smaller of the two values; negative where the signal fell."""
    largest_before: float


class JumpTest(Stateful):
    """Judges the positive, finite values of one signal."""

    __slots__ = ("_gap", "_highest", "_in_cell", "_last", "_limits", "_step", "_top", "_tops")
    not_saved = ("_limits",)

    def __init__(self, limits: JumpLimits) -> None:
        self._limits = limits
        self._tops: list[float] = []
        """The largest change of each remembered cell, and of all of them."""
        self._highest = 0.0
        self.restart()

    def restart(self) -> None:
        self._last, self._step, self._gap = 0.0, 0, 0
        self._in_cell, self._top = 0, 0.0
        self._tops, self._highest = [], 0.0

    def skip_next(self) -> None:
        """Do not compare the next value with the last; its noise is the same as before."""
        self._last = 0.0

    def update(self, values: FloatArray, steps: IntArray) -> Iterator[tuple[int, Jump]]:
        """Judge the next values; yield where the signal jumped."""
        for begin in range(0, len(values), _VALUES_AT_ONCE):
            part = slice(begin, begin + _VALUES_AT_ONCE)
            for at, jump in self._judge_part(values[part], steps[part]):
                yield begin + at, jump

    def _judge(self, change: float) -> Jump | None:
        """Judge one change, then make it part of the past."""
        jump = None
        size = abs(change)
        if size > self._top:
            times = self._limits.up if change > 0 else self._limits.down
            floor = self._limits.floor
            if len(self._tops) < MIN_CELLS:  # so far only a clear change is judged, if anything
                limits = self._limits
                is_known = self._tops or self._in_cell >= MIN_EARLY
                early = limits.early_rise if change > 0 else limits.early_floor
                floor = early if is_known else math.inf
            if times is not None:
                largest = max(self._highest, self._top)
                limit = max(largest * times, floor)
                if size > limit:
                    jump = Jump(change, largest)
                    size = limit
            self._top = size
        self._in_cell += 1
        if self._in_cell == CHANGES_PER_CELL:
            self._tops = [*self._tops[1 - CELLS_REMEMBERED :], self._top]
            self._highest = max(self._tops)
            self._in_cell, self._top = 0, 0.0
        return jump

    def _judge_part(self, values: FloatArray, steps: IntArray) -> Iterator[tuple[int, Jump]]:
        last = np.concatenate(([self._last], values[:-1]))
        gaps = np.diff(np.concatenate(([self._step], steps)))
        last_gap = np.concatenate(([self._gap], gaps[:-1]))
        # Over more steps than usual a signal may move further than usual.
        comparable = (gaps > 0) & (gaps <= last_gap)
        comparable[0] &= self._last != 0
        self._last, self._step, self._gap = float(values[-1]), int(steps[-1]), int(gaps[-1])
        judged = None if comparable.all() else np.flatnonzero(comparable)
        if judged is not None:
            values, last = values[judged], last[judged]
        with np.errstate(over="ignore"):
            rise = values / last - 1.0
            changes = np.where(rise >= 0, rise, 1.0 - last / values)
        changes = np.clip(changes, -_MAX_CHANGE, _MAX_CHANGE)
        at = 0
        while at < len(changes):
            done = self._pass_calm_cells(changes[at:])
            if not done:  # a cell is half full, the memory is filling, or there is a jump
                done = min(CHANGES_PER_CELL - self._in_cell, len(changes) - at)
                for place in range(at, at + done):
                    jump = self._judge(float(changes[place]))
                    if jump is not None:
                        yield place if judged is None else int(judged[place]), jump
            at += done

    def _pass_calm_cells(self, changes: FloatArray) -> int:
        """Pass the whole cells before the first that may have a jump; return how many changes."""
        cells = len(changes) // CHANGES_PER_CELL
        if not cells or self._in_cell or len(self._tops) < CELLS_REMEMBERED:
            return 0
        part = changes[: cells * CHANGES_PER_CELL].reshape(cells, CHANGES_PER_CELL)
        rises, falls = part.max(axis=1), 0.0 - part.min(axis=1)  # never -0.0
        tops = np.concatenate((self._tops, np.maximum(rises, falls)))
        highest = over_neighbours(np.maximum, tops, CELLS_REMEMBERED)[:-1]
        may_jump = self._may_jump(rises, falls, highest)
        if may_jump.any():
            cells = int(np.argmax(may_jump))
            if not cells:
                return 0
        self._tops = tops[cells : cells + CELLS_REMEMBERED].tolist()
        self._highest = max(self._tops)
        return cells * CHANGES_PER_CELL

    def _may_jump(self, rises: FloatArray, falls: FloatArray, highest: FloatArray) -> BoolArray:
        """Return which cells may have a jump, by the changes before the cell alone."""
        limits = self._limits
        ups, downs = (
            np.full(len(highest), np.inf)
            if times is None
            else np.maximum(highest * times, limits.floor)
            for times in (limits.up, limits.down)
        )
        return np.asarray((rises > ups) | (falls > downs))


# What a jump of each signal means, and how large it has to be.
#
# The figures above a rule are the largest changes in 484 healthy runs of the lab, in units of the
# largest of the 128 changes before each.


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpRule:
    """What a jump of one signal means."""

    limits: JumpLimits
    up: Symptom
    down: Symptom | None = None
    """The symptom of a fall; None if it is that of a rise."""
    falls_harmlessly: bool = False
    """Whether a fall is only a warning."""
    returns_harmlessly: bool = False
    """Whether a rise to where the signal has been before is only a warning."""
    by_rate: bool = False
    """Whether the value is divided by the learning rate first."""
    may_step_back: bool = True
    """Whether a new attempt starts at an older value."""


def _update_rule(*, down: float, floor: float = 0.1, early_floor: float = math.inf) -> JumpRule:
    return JumpRule(
        limits=JumpLimits(up=14.0, down=down, floor=floor, early_floor=early_floor),
        up=Symptom.UPDATE_SPIKE,
        down=Symptom.UPDATE_SHIFT,
        by_rate=True,
    )


RULES = {
    # 1.7 up, 1.1 down.
    signals.PARAM_NORM: JumpRule(
        limits=JumpLimits(up=2.0, down=2.0, floor=1e-3), up=Symptom.NORM_DRIFT
    ),
    # Of a group, 12 up: a batch can do that; rare tokens raise the embedding's 16 times. 3.1 down,
    # in the few weights of the norms after a batch of 64 tokens. Noise with a heavy tail (t with 5
    # degrees) falls by 3 times its largest change once in 45,000 records.
    f"{signals.UPDATE_NORM}/": _update_rule(down=4.0),
    # 7.1 down, but then by a sixth: its updates are those of a few rows, and one batch can turn
    # them around. A large epsilon makes it fall by 6 to 18 times, and by a fifth or more.
    f"{signals.UPDATE_NORM}/embedding": _update_rule(down=7.0, floor=0.2),
    # 3.6 down: the embedding is its largest part. In the first 64 changes of the healthy kinds of
    # `scripts/bench judge` 2.8 down; a large epsilon halves it or more.
    signals.UPDATE_NORM: _update_rule(down=7.0, floor=0.2, early_floor=1.0),
    # One gradient of one batch can raise it by any factor. 1.4 down: v falls by 1 - beta2 at most,
    # unless something else wrote it.
    signals.ADAM_V_NORM: JumpRule(
        limits=JumpLimits(up=None, down=2.0, floor=0.02),
        up=Symptom.GRADIENT_SPIKE,
        down=Symptom.STATE_RESET,
    ),
    # 4.4 down: one gradient against the momentum can do that, so only v shows that state is lost.
    # Up as v.
    signals.ADAM_M_NORM: JumpRule(
        limits=JumpLimits(up=None, down=2.5, floor=0.1),
        up=Symptom.GRADIENT_SPIKE,
        down=Symptom.STATE_RESET,
        falls_harmlessly=True,
    ),
    # 3.1 up, 2.8 down; 4.5 finds as many faults as 3.5.
    signals.ACTIVATION_RMS: JumpRule(
        limits=JumpLimits(up=4.5, down=4.5, floor=0.05), up=Symptom.ACTIVATION_JUMP
    ),
    # 4.2 up; 6.5 finds as many faults as 5. A fall means easier text.
    signals.TOKEN_RARITY: JumpRule(
        limits=JumpLimits(up=6.5, down=None, floor=0.05), up=Symptom.ODD_TOKENS, may_step_back=False
    ),
    # 2.4 down, apart from a change of the batches that is known and from a batch that is one token;
    # 4 finds as many faults as 2.5.
    signals.UNIQUE_TOKEN_SHARE: JumpRule(
        limits=JumpLimits(up=None, down=4.0, floor=0.05), up=Symptom.ODD_TOKENS, may_step_back=False
    ),
    # A smooth curve or a constant: the floor decides. A step down is a common schedule, and so is a
    # return to the highest rate (warm restarts). Early on, ten times in a record is no warm-up.
    signals.LR: JumpRule(
        limits=JumpLimits(up=4.0, down=4.0, floor=0.5, early_rise=9.0),
        up=Symptom.LR_JUMP,
        falls_harmlessly=True,
        returns_harmlessly=True,
    ),
}
"""By signal, by the prefix of the signals of groups, or by the signal that they belong to."""


@cache
def rule_of(name: str) -> JumpRule | None:
    """Return the rule for a signal or for a group of it; None if it has no rule."""
    head, slash, _ = name.partition("/")
    return RULES.get(name) or RULES.get(head + slash) or RULES.get(head)


# StateJumps: signals of model and optimizer that move further in one step than in the recent past.
#
# A weight norm moves by about the learning rate per step, a moment by what its beta lets through,
# an update by both. So their noise is tiny, and faults that do not show in the loss show here at
# once: old weights, a lost or shrunk moment, a large epsilon, frozen parameters, replicas out of
# sync.


class StateJumps(Detector):
    """One finding for each jump of a signal that has a rule, or of one of its groups."""

    name = "state-jump"
    listens_to = KnownChange.WENT_BACK | KnownChange.CHANGED | KnownChange.RESUMED
    skips_odd_batches = True

    def __init__(self) -> None:
        self._tests = StatefulDict(_new_test)
        """Of every signal with a rule that was recorded."""
        self._highest: dict[str, float] = {}
        """Of the signals that may return."""

    def on_event(self, change: KnownChange) -> None:
        """Forget the past after a change, and only the last value in a new attempt.

        A resume may have another learning rate on purpose: the resume audit compares it with the
        saved one.
        """
        for name, test in self._tests.items():
            rule = rule_of(name)
            if change & KnownChange.CHANGED:
                test.restart()
            elif not change & KnownChange.WENT_BACK:
                if rule is RULES[signals.LR]:
                    test.skip_next()
            elif rule is not None and rule.may_step_back:
                test.skip_next()

    def update_many(self, block: Block) -> list[Finding]:
        return [finding for name in block.columns for finding in self._judge_signal(block, name)]

    def _judge_signal(self, block: Block, name: str) -> Iterator[Finding]:
        rule = rule_of(name)
        if rule is None:
            return
        column = block.columns[name]
        values, good = column.values, column.present
        if rule.by_rate:
            rate = block.column(signals.LR)
            good = good & rate.finite & (rate.values > 0)
            with np.errstate(all="ignore"):
                values = values / rate.values
        good = good & (values > 0) & (values < np.inf)
        rows = None if good.all() else np.flatnonzero(good)  # a complete signal is not copied
        steps = block.step
        if rows is not None:
            values, steps = values[rows], steps[rows]
        highest = self._highest.get(name, 0.0)
        if rule.returns_harmlessly and len(values):
            self._highest[name] = max(highest, float(values.max()))
        for at, jump in self._tests[name].update(values, steps):
            row = at if rows is None else int(rows[at])
            before = max(highest, float(values[:at].max(initial=0.0)))
            yield _finding(name, rule, Point.at(block, row, column.values[row]), jump, before)


def _new_test(name: str) -> JumpTest:
    rule = rule_of(name)
    if rule is None:
        raise ValueError(f"no rule for jumps of {name!r}")
    return JumpTest(rule.limits)


def _finding(name: str, rule: JumpRule, point: Point, jump: Jump, highest: float) -> Finding:
    rose = jump.change > 0
    returned = rose and rule.returns_harmlessly and point.value <= RETURNED * highest
    is_alarm = (rose and not returned) or not (rose or rule.falls_harmlessly)
    expected = point.value / (1 + jump.change) if rose else point.value * (1 - jump.change)
    return point.finding(
        StateJumps.name,
        rule.up if rose else rule.down or rule.up,
        Severity.ALARM if is_alarm else Severity.WARN,
        name,
        expected=expected,
        facts={"change": jump.change, "largest_before": jump.largest_before},
    )
