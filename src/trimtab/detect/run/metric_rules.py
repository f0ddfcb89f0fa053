"""Rules of a user on any recorded metric, and NaN in any metric without a rule.

    [rules."perf/mfu"]          # in trimtab.toml; the name as it is recorded
    below = 0.3
    for = 200

A metric that was finite and then is not is reported without a rule, since most people plot their
own metrics, where a NaN leaves a gap that is easily overlooked. Signals that a guard measures are
left to its own detectors: under a loss scaler the gradients of some steps overflow, and that is
normal.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import repeat

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.config import MetricRule
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity
from trimtab.core.robust import median
from trimtab.core.signals import PARAM_NORM, UPDATE_NORM, VALUE_LOSS, is_measured
from trimtab.core.state import Stateful, StatefulDict

NUM_REFERENCE = 64
"""Values whose median is what `change` compares with. Chosen: a warm-up of the loader or of the
compiler, some dozen steps, is a minority of them."""

MIN_NONFINITE = 3
"""Non-finite values in a row before a metric without a rule is reported. Chosen: a metric of one
odd batch, such as the accuracy of a class that did not occur in it, is NaN once."""

_ONES = repeat(1)
"""For metrics that never were finite."""


class MetricRules(Detector):
    """One finding each time that a metric begins to break a rule."""

    name = "rules"
    not_saved = ("_rules",)

    def __init__(self, rules: Mapping[str, MetricRule]) -> None:
        self._rules = rules
        self._states = StatefulDict(lambda name: _State())
        self._nonfinite: dict[str, int] = {}
        """Non-finite values in a row, of the metrics that were finite before."""

    def update(self, record: Record) -> list[Finding]:
        findings = [
            self._broken(record, name, rule)
            for name, rule in self._rules.items()
            if name in record.signals and self._states[name].update(rule, record.signals[name])
        ]
        # Nearly always all values are finite, as they were before: known at the speed of C.
        is_finite = all(map(math.isfinite, record.signals.values()))
        if not is_finite or any(map(self._nonfinite.get, record.signals, _ONES)):
            findings += self._judge_finiteness(record)
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a metric of a rule, or in which one is or was not finite."""
        is_relevant = np.zeros(len(block), dtype=np.bool_)
        for name, column in block.columns.items():
            if name in self._rules:
                is_relevant |= column.present
            elif not is_measured(name):
                rows = np.flatnonzero(column.present)
                nonfinite = column.nonfinite[rows]
                is_relevant[rows[nonfinite]] = True
                # A finite value matters where it is the first one, or ends a stretch.
                was_nonfinite = np.concatenate(
                    ([self._nonfinite.get(name, 1) > 0], nonfinite[:-1])
                )[: len(rows)]
                is_relevant[rows[~nonfinite & was_nonfinite]] = True
        return np.flatnonzero(is_relevant)

    def _judge_finiteness(self, record: Record) -> Iterator[Finding]:
        for name, value in record.signals.items():
            if math.isfinite(value):
                self._nonfinite[name] = 0
            elif name in self._nonfinite and not _is_judged_elsewhere(name, record):
                self._nonfinite[name] += 1
                rule = self._rules.get(name)
                # A value function does not come back from a loss that is not finite.
                enough = 1 if name == VALUE_LOSS else MIN_NONFINITE
                if self._nonfinite[name] == enough and (rule is None or rule.nan):
                    yield self.finding(record, f"{name} is not finite", Severity.ALARM, name)

    def _broken(self, record: Record, name: str, rule: MetricRule) -> Finding:
        state = self._states[name]
        limit, words = state.broken_limit, state.broken_words
        lasting = f" for {rule.lasting} records" if rule.lasting > 1 else ""
        symptom = rule.message or f"{name} {words} {limit:.4g}{lasting}"
        severity = Severity[rule.severity.upper()]
        return self.finding(record, symptom, severity, name, limit=limit)


def _is_judged_elsewhere(name: str, record: Record) -> bool:
    """Return whether a guard measures it, or it is of a group and the norm of all is recorded."""
    whole, slash, _ = name.partition("/")
    is_part = bool(slash) and whole in (PARAM_NORM, UPDATE_NORM) and whole in record.signals
    return is_part or is_measured(name)


class _State(Stateful):
    """How a metric stands with its rule."""

    def __init__(self) -> None:
        self.broken_limit = 0.0
        """The limit that was passed last."""
        self.broken_words = ""
        """On which side: "above" or "below"."""
        self._num_beyond = 0
        """Values in a row beyond a limit."""
        self._num_within = 0
        """Values in a row within all limits."""
        self._is_reported = False
        self._reference: deque[float] = deque(maxlen=NUM_REFERENCE)
        self._newest: deque[float] = deque()

    def update(self, rule: MetricRule, value: float) -> bool:
        """Add a value; return whether the rule is newly broken."""
        if math.isnan(value):  # neither above nor below: reported by itself
            return False
        if self._is_changed(rule, value):
            return True
        if value > rule.above:
            self.broken_limit, self.broken_words = rule.above, "above"
        elif value < rule.below:
            self.broken_limit, self.broken_words = rule.below, "below"
        else:
            self._num_beyond = 0
            self._num_within += 1
            # A metric that swings around its limit is one story.
            if self._num_within >= rule.lasting:
                self._is_reported = False
            return False
        self._num_beyond, self._num_within = self._num_beyond + 1, 0
        if self._is_reported or self._num_beyond < rule.lasting:
            return False
        self._is_reported = True
        return True

    def _is_changed(self, rule: MetricRule, value: float) -> bool:
        """Return whether the newest values have left the reference by more than is allowed."""
        if math.isinf(rule.change) or math.isinf(value):
            return False
        if len(self._reference) < NUM_REFERENCE:
            self._reference.append(value)
            return False
        self._newest.append(value)
        if len(self._newest) < rule.lasting:
            return False
        now, before = median(self._newest), median(self._reference)
        self._newest.popleft()
        allowed = rule.change * abs(before)
        if abs(now - before) <= allowed:
            return False
        self.broken_limit = before + math.copysign(allowed, now - before)
        self.broken_words = "above" if now > before else "below"
        # From here on the new level is what further changes are compared with.
        self._reference.clear()
        self._newest.clear()
        return True
