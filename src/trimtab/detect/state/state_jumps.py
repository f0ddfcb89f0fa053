"""StateJumps: signals of model and optimizer that move further in one step than in the recent past.

A weight norm moves by about the learning rate per step, a moment by what its beta lets through, an
update by both. So their noise is tiny, and faults that do not show in the loss show here at once:
old weights, a lost or shrunk moment, a large epsilon, frozen parameters, replicas out of sync.
"""

import math
from collections.abc import Iterator

import numpy as np

from trimtab.core.block import Block, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity
from trimtab.core.signals import LR
from trimtab.core.state import Parts
from trimtab.detect.state.jump_rules import JumpRule, rule_of
from trimtab.detect.tools.jump_test import Jump, JumpTest
from trimtab.detect.tools.rows import Seen


class StateJumps(Detector):
    """One finding for each jump of a signal that has a rule, or of one of its groups."""

    name = "state-jump"
    listens_to = KnownChange.WENT_BACK | KnownChange.CHANGED
    skips_odd_batches = True

    def __init__(self) -> None:
        self._tests = Parts(_new_test)
        """Of every signal with a rule that was recorded."""

    def on_event(self, change: KnownChange) -> None:
        """Forget the past after a change, and only the last value in a new attempt."""
        for name, test in self._tests.items():
            rule = rule_of(name)
            if change & KnownChange.CHANGED:
                test.restart()
            elif rule is not None and rule.may_step_back:
                test.skip_next()

    def update(self, record: Record) -> list[Finding]:
        """Judge one record."""
        findings = []
        signals = record.signals
        for name, value in signals.items():
            rule = rule_of(name)
            if rule is None:
                continue
            if rule.by_rate:
                rate = signals.get(LR, 0.0)
                value = value / rate if 0.0 < rate < math.inf else 0.0
            elif value < rule.min_value:
                value = rule.min_value
            if not 0.0 < value < math.inf:
                continue
            jump = self._tests[name].update(value, record.step)
            if jump is not None:
                seen = Seen(record.tick, record.step, signals[name])
                findings.append(_finding(name, rule, seen, jump))
        return findings

    def update_many(self, block: Block) -> list[Finding]:
        """Judge many records, with the findings that `update` would return."""
        return [finding for name in block.columns for finding in self._judge_signal(block, name)]

    def _judge_signal(self, block: Block, name: str) -> Iterator[Finding]:
        rule = rule_of(name)
        if rule is None:
            return
        column = block.columns[name]
        values, good = column.values, column.present
        if rule.by_rate:
            rate = block.column(LR)
            good = good & rate.finite & (rate.values > 0)
            with np.errstate(all="ignore"):
                values = values / rate.values
        elif rule.min_value:
            values = np.maximum(values, rule.min_value)
        good = good & (values > 0) & (values < np.inf)
        rows = None if good.all() else np.flatnonzero(good)  # a complete signal is not copied
        steps = block.step
        if rows is not None:
            values, steps = values[rows], steps[rows]
        for at, jump in self._tests[name].update_many(values, steps):
            row = at if rows is None else int(rows[at])
            yield _finding(name, rule, Seen.at(block, row, column.values[row]), jump)


def _new_test(name: str) -> JumpTest:
    rule = rule_of(name)
    if rule is None:
        raise ValueError(f"no rule for jumps of {name!r}")
    return JumpTest(rule.limits)


def _finding(name: str, rule: JumpRule, seen: Seen, jump: Jump) -> Finding:
    rose = jump.change > 0
    is_alarm = rose or not rule.falls_harmlessly
    expected = seen.value / (1 + jump.change) if rose else seen.value * (1 - jump.change)
    return Finding(
        detector=StateJumps.name,
        symptom=rule.up if rose else rule.down,
        severity=Severity.ALARM if is_alarm else Severity.WARN,
        signal=name,
        step=seen.step,
        tick=seen.tick,
        value=seen.value,
        expected=expected,
        facts={"change": jump.change, "largest_before": jump.largest_before},
    )
