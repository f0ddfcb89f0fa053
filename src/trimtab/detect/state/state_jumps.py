"""Leaps: signals of the model's and the optimizer's state that move further in one step than ever.

A weight norm moves by about the learning rate per step, a moment by what its beta lets through, an
update by both. So their noise is tiny, and what nobody sees in the loss shows here at once: old
weights, a lost or shrunk moment, a large epsilon, frozen parameters, replicas out of sync.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity
from trimtab.core.signals import LR
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.state.jump_rules import Rule, rule_of
from trimtab.detect.tools.jump_test import Jump, Leap
from trimtab.detect.tools.rows import Row, Seen


class _Watched(NamedTuple):
    """One signal with its rule."""

    leap: Leap
    rule: Rule


class Leaps:
    """One finding for each leap of a signal that has a rule, or of one of its groups."""

    name = "leap"
    hears = Known.WENT_BACK | Known.CHANGED

    def __init__(self) -> None:
        self._signals: dict[str, _Watched | None] = {}
        """Every signal that was seen; none if it has no rule."""

    def hear(self, known: Known) -> None:
        """A change makes the past worthless, a new attempt only the last value."""
        for watched in self._signals.values():
            if watched is None:
                continue
            if known & Known.CHANGED:
                watched.leap.restart()
            elif watched.rule.may_step_back:
                watched.leap.cut()

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        findings = []
        signals = row.signals
        for name, value in signals.items():
            watched = self._signals[name] if name in self._signals else self._watch(name)
            if watched is None:
                continue
            leap, rule = watched
            if rule.by_rate:
                rate = signals.get(LR, 0.0)
                value = value / rate if 0.0 < rate < math.inf else 0.0
            elif value < rule.least:
                value = rule.least
            if not 0.0 < value < math.inf:
                continue
            jump = leap.take(value, row.step)
            if jump is not None:
                seen = Seen(row.tick, row.step, signals[name])
                findings.append(_finding(name, rule, seen, jump))
        return findings

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        return [finding for name in block.columns for finding in self._sweep_one(block, name)]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered of each signal."""
        watched = {name: item for name, item in self._signals.items() if item is not None}
        return {name: item.leap.state_dict() for name, item in watched.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._signals = {}
        for name, part in state.items():
            watched = self._watch(name)
            if watched is not None:
                watched.leap.load_state_dict(part)

    def _watch(self, name: str) -> _Watched | None:
        rule = rule_of(name)
        watched = None if rule is None else _Watched(Leap(rule.reach), rule)
        self._signals[name] = watched
        return watched

    def _sweep_one(self, block: Block, name: str) -> Iterator[Finding]:
        watched = self._signals[name] if name in self._signals else self._watch(name)
        if watched is None:
            return
        leap, rule = watched
        column = block.columns[name]
        values, good = column.values, column.present
        if rule.by_rate:
            rate = block.column(LR)
            good = good & rate.finite & (rate.values > 0)
            with np.errstate(all="ignore"):
                values = values / rate.values
        elif rule.least:
            values = np.maximum(values, rule.least)
        good = good & (values > 0) & (values < np.inf)
        rows = None if good.all() else np.flatnonzero(good)  # a complete signal is not copied
        steps = block.step
        if rows is not None:
            values, steps = values[rows], steps[rows]
        for at, jump in leap.sweep(values, steps):
            row = at if rows is None else int(rows[at])
            yield _finding(name, rule, Seen.at(block, row, column.values[row]), jump)


def _finding(name: str, rule: Rule, seen: Seen, jump: Jump) -> Finding:
    rose = jump.change > 0
    is_alarm = rose or not rule.falls_harmlessly
    expected = seen.value / (1 + jump.change) if rose else seen.value * (1 - jump.change)
    return Finding(
        detector=Leaps.name,
        symptom=rule.up if rose else rule.down,
        severity=Severity.ALARM if is_alarm else Severity.WARN,
        signal=name,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        expected=expected,
        false_per_10k=FALSE_PER_10K.get(Leaps.name) if is_alarm else None,
        facts={"change": jump.change, "largest_before": jump.record},
    )
