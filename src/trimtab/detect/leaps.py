"""Leaps: signals of the model's and the optimizer's state that move further in one step than ever.

A weight norm moves by about the learning rate per step, a moment by what its beta lets through, an
update by both. So their noise is tiny, and what nobody sees in the loss shows here at once: old
weights, a lost or shrunk moment, a large epsilon, frozen parameters, replicas out of sync.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import (
    ACTIVATION_RMS,
    ADAM_M_NORM,
    ADAM_V_NORM,
    LR,
    PARAM_NORM,
    TOKEN_RARITY,
    UNIQUE_TOKEN_SHARE,
    UPDATE_NORM,
)
from trimtab.detect.known import Known
from trimtab.detect.leap import Jump, Leap, Reach
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What a leap of one signal means."""

    reach: Reach
    up: Symptom
    down: Symptom
    falls_harmlessly: bool = False
    """Whether a fall is only a warning."""
    by_rate: bool = False
    """Whether the learning rate is divided out first."""
    may_step_back: bool = True
    """Whether a new attempt begins at an older value."""


RULES = {
    # Largest in 48 healthy runs of the lab, times the record: 1.6 up, 1.1 down.
    PARAM_NORM: _Rule(
        reach=Reach(up=2.0, down=2.0, floor=1e-3),
        up=Symptom.NORM_DRIFT,
        down=Symptom.NORM_DRIFT,
    ),
    # 5.1 up (a batch can do that), 1.7 down; but noise with a heavy tail (t with 5 degrees) is 2.5
    # times below its record once in 20,000 records.
    UPDATE_NORM: _Rule(
        reach=Reach(up=6.0, down=4.0, floor=0.1),
        up=Symptom.UPDATE_SPIKE,
        down=Symptom.UPDATE_DROP,
        by_rate=True,
    ),
    # 84 up: one gradient can do that, and a lasting rise is what shows. 1.4 down: v falls by 1 -
    # beta2 at most, unless somebody else wrote it.
    ADAM_V_NORM: _Rule(
        reach=Reach(up=128.0, down=2.0, floor=0.02),
        up=Symptom.GRADIENT_SPIKE,
        down=Symptom.STATE_LOST,
    ),
    # 1.7 down; up as v.
    ADAM_M_NORM: _Rule(
        reach=Reach(up=None, down=2.5, floor=0.1),
        up=Symptom.GRADIENT_SPIKE,
        down=Symptom.STATE_LOST,
    ),
    # 2.1 up, 2.4 down.
    ACTIVATION_RMS: _Rule(
        reach=Reach(up=3.5, down=3.5, floor=0.05),
        up=Symptom.ACTIVATION_JUMP,
        down=Symptom.ACTIVATION_JUMP,
    ),
    # 3.8 up. A fall means text that is easier.
    TOKEN_RARITY: _Rule(
        reach=Reach(up=5.0, down=None, floor=0.05),
        up=Symptom.ODD_TOKENS,
        down=Symptom.ODD_TOKENS,
        may_step_back=False,
    ),
    # 1.7 down.
    UNIQUE_TOKEN_SHARE: _Rule(
        reach=Reach(up=None, down=2.5, floor=0.05),
        up=Symptom.ODD_TOKENS,
        down=Symptom.ODD_TOKENS,
        may_step_back=False,
    ),
    # A smooth curve or a constant: what is asked is the floor. A step down is a common schedule.
    LR: _Rule(
        reach=Reach(up=4.0, down=4.0, floor=0.5),
        up=Symptom.LR_JUMP,
        down=Symptom.LR_JUMP,
        falls_harmlessly=True,
    ),
}
"""By signal, or by what stands in front of the group's name."""


class Leaps:
    """One finding for each leap of a signal that has a rule, or of one of its groups."""

    name = "leap"
    hears = Known.WENT_BACK | Known.CHANGED

    def __init__(self) -> None:
        self._leaps: dict[str, Leap | None] = {}
        """By signal; none if no rule is for it."""

    def hear(self, known: Known) -> None:
        """A change makes the past worthless, a new attempt only the last value."""
        for name, leap in self._leaps.items():
            if leap is None:
                continue
            if known & Known.CHANGED:
                leap.restart()
            elif _rule_of(name).may_step_back:
                leap.cut()

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings = []
        signals = row.signals
        for name, value in signals.items():
            leap = self._leaps[name] if name in self._leaps else self._watch(name)
            if leap is None or not 0.0 < value < math.inf:
                continue
            if _rule_of(name).by_rate:
                rate = signals.get(LR, 0.0)
                if not 0.0 < rate < math.inf or not 0.0 < value / rate < math.inf:
                    continue
                value /= rate
            jump = leap.take(value, row.step)
            if jump is not None:
                findings.append(_finding(name, row.step, row.tick, signals[name], jump))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        return [finding for name in block.columns for finding in self._sweep_one(block, name)]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered of each signal."""
        return {name: leap.state_dict() for name, leap in self._leaps.items() if leap is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._leaps = {}
        for name, part in state.items():
            leap = self._watch(name)
            if leap is not None:
                leap.load_state_dict(part)

    def _watch(self, name: str) -> Leap | None:
        is_watched = _family(name) in RULES
        leap = self._leaps[name] = Leap(_rule_of(name).reach) if is_watched else None
        return leap

    def _sweep_one(self, block: Block, name: str) -> Iterator[Finding]:
        leap = self._leaps[name] if name in self._leaps else self._watch(name)
        if leap is None:
            return
        column = block.columns[name]
        values = column.values
        good = column.finite & (values > 0)
        if _rule_of(name).by_rate:
            rate = block.column(LR)
            with np.errstate(all="ignore"):
                values = values / rate.values
                good &= rate.finite & (rate.values > 0) & np.isfinite(values) & (values > 0)
        rows = np.flatnonzero(good)
        for at, jump in leap.sweep(values[rows], block.step[rows]):
            row = int(rows[at])
            place = int(block.step[row]), int(block.tick[row])
            yield _finding(name, *place, float(column.values[row]), jump)


def _family(name: str) -> str:
    """The name without its group."""
    head, slash, _ = name.partition("/")
    return head + slash if head + slash in RULES else head


def _rule_of(name: str) -> _Rule:
    rule = RULES.get(name)
    return RULES[_family(name)] if rule is None else rule


def _finding(name: str, step: int, tick: int, value: float, jump: Jump) -> Finding:
    rule = _rule_of(name)
    rose = jump.change > 0
    is_alarm = rose or not rule.falls_harmlessly
    expected = value / (1 + jump.change) if rose else value * (1 - jump.change)
    return Finding(
        detector=Leaps.name,
        symptom=rule.up if rose else rule.down,
        severity=Severity.ALARM if is_alarm else Severity.WARN,
        signal=name,
        step=step,
        tick=tick,
        value=value,
        expected=expected,
        false_per_10k=FALSE_PER_10K.get(Leaps.name) if is_alarm else None,
        facts={"change": jump.change, "largest_before": jump.record},
    )
