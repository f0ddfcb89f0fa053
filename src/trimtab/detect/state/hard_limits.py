"""Values that are wrong by themselves, whatever the run did before.

ResumeAudit      what a resume has not restored
HarmedState      harm to weights or optimizer that a guard has proven
Replicas         ranks that should hold the same bits and do not
NonFinite        NaN and infinite values
FrozenUpdates    updates or gradients that are exactly zero
LossScale        a loss scale that keeps falling, falls under 1, or never moves
AttentionLogits  attention logits beyond what softmax can use
Experts          a router that sends everything to one expert, or nothing to some
"""

import math

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, BoolArray, IntArray, Record
from trimtab.core.causes import Cause
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Explanation, Finding, Severity, Symptom
from trimtab.journal.resume.comparison import ORDER, THINGS, WARNING_BIT


class ResumeAudit(Detector):
    """One finding for each thing that a resume has not restored, with its fix."""

    name = "resume-audit"
    needs = signals.RESUME_AUDIT

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get(signals.RESUME_AUDIT)
        if value is None or not 0.0 < value < WARNING_BIT * WARNING_BIT or value != int(value):
            return []  # nothing, or not ours
        bits = int(value)
        findings = []
        for place, symptom in enumerate(ORDER):
            bit = 1 << place
            if bits & bit:
                findings.append(self._finding(record, symptom, Severity.ALARM))
            elif bits & bit * WARNING_BIT:
                findings.append(self._finding(record, symptom, Severity.WARN))
        return findings

    def _finding(self, record: Record, symptom: Symptom, severity: Severity) -> Finding:
        thing = THINGS[symptom]
        return self.finding(
            record,
            symptom,
            severity,
            signals.RESUME_AUDIT,
            expected=0.0,
            explanation=Explanation(
                cause_id=thing.cause.id,
                cause_title=thing.cause.title,
                remedy=thing.fix[0].upper() + thing.fix[1:] + ".",
            ),
        )


class HarmedState(Detector):
    """One alarm for each time that a guard has proven harm to weights or optimizer.

    The loss need not have moved: an undo comes before it does.
    """

    name = "harm"
    listens_to = KnownChange.HARMED

    def __init__(self) -> None:
        self._is_harmed = False

    def on_event(self, change: KnownChange) -> None:
        self._is_harmed = True

    def update(self, record: Record) -> list[Finding]:
        if not self._is_harmed:
            return []
        self._is_harmed = False
        loss = record.signals.get(signals.LOSS, math.nan)
        return [self.finding(record, Symptom.HARMED_STATE, Severity.ALARM, signals.LOSS, loss)]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the first row: blocks are cut where an event is due."""
        return np.arange(min(len(block), 1))


# Replicas: what ranks should hold alike differs, by the checksums of a guard.

MIN_EQUAL = 10
"""Checks with equal replicas before a difference is an alarm. Chosen: where replicas are meant to
differ, as in local SGD, they are not equal ten times in a row."""

MIN_DIFFERENT = 2
"""Checks in a row with different ones. Chosen: code that changes one rank after another, such as a
reset of a head, may be seen half-way once."""


class Replicas(Detector):
    """One alarm when replicas that were equal have come to differ."""

    name = "replicas"
    needs = signals.REPLICAS_DIFFER
    listens_to = KnownChange.CHANGED | KnownChange.RESUMED | KnownChange.WENT_BACK

    def __init__(self) -> None:
        self._num_equal = self._num_different = 0

    def on_event(self, change: KnownChange) -> None:
        """Begin again: the state was changed, or is that of another process."""
        self._num_equal = self._num_different = 0

    def update(self, record: Record) -> list[Finding]:
        bits = record.signals.get(signals.REPLICAS_DIFFER)
        if bits is None or not 0.0 <= bits < 1 << len(signals.ROLES):
            return []
        if bits == 0.0:
            self._num_equal = min(self._num_equal + 1, MIN_EQUAL)
            self._num_different = 0
            return []
        self._num_different += 1
        if self._num_different < MIN_DIFFERENT:
            return []
        was_equal, self._num_equal = self._num_equal == MIN_EQUAL, 0
        if not was_equal:
            return []
        roles = [role for place, role in enumerate(signals.ROLES) if int(bits) >> place & 1]
        cause = Cause.REPLICAS_OUT_OF_SYNC
        explanation = Explanation(
            cause_id=cause.id,
            cause_title=cause.title,
            remedy=f"Ranks hold different weights or moments ({', '.join(roles)}): restart from a "
            "checkpoint before that, and look for what writes them on one rank only.",
        )
        return [
            self.finding(
                record,
                Symptom.REPLICAS_DIFFER,
                Severity.ALARM,
                signals.REPLICAS_DIFFER,
                expected=0.0,
                explanation=explanation,
            )
        ]


# NonFinite: NaN and infinite values, found before anything else and never part of a baseline.

SYMPTOMS = {
    signals.LOSS: Symptom.NONFINITE_LOSS,
    signals.GRAD_NORM: Symptom.NONFINITE_GRAD_NORM,
    # A bit flip can leave the loss finite while one of these is not; the weights are ruined then.
    signals.PARAM_NORM: Symptom.NONFINITE_NORM,
    signals.UPDATE_NORM: Symptom.NONFINITE_NORM,
    signals.ADAM_V_NORM: Symptom.NONFINITE_NORM,
}


_OF_WEIGHTS = (signals.PARAM_NORM, signals.UPDATE_NORM)
"""What an infinite weight shows in: infinity minus infinity is NaN."""


def nonfinite_rows(block: Block, signal: str) -> BoolArray:
    """Return the rows in which a signal is not finite, unless that is on purpose.

    A weight that is infinite, not NaN, while loss and gradients are finite was written by code that
    masks a class. An infinity that does harm shows in the next loss.
    """
    is_bad = block.column(signal).nonfinite
    if signal in _OF_WEIGHTS and is_bad.any():
        is_mask = np.isinf(block.column(signals.PARAM_NORM).values)
        for name in (signals.LOSS, signals.GRAD_NORM):
            is_mask &= block.column(name).finite
        is_bad &= ~is_mask
    return is_bad


class NonFinite(Detector):
    """One finding at the start of each non-finite stretch of a signal that must stay finite.

    A gradient that overflows under a loss scaler is normal: the scaler skips the step and halves
    its scale. How often that happens is the business of other detectors.
    """

    name = "non-finite"
    not_saved = ("_under_scaler",)

    def __init__(self, under_scaler: Severity = Severity.INFO) -> None:
        self._under_scaler = under_scaler
        """Of a non-finite gradient norm in a record with a loss scale."""
        self._is_inside = dict.fromkeys(SYMPTOMS, False)

    def update(self, record: Record) -> list[Finding]:
        findings = []
        for signal, was_inside in self._is_inside.items():
            value = record.signals.get(signal)
            if value is None:  # a missing value neither starts nor ends a stretch
                continue
            is_bad = not math.isfinite(value)
            if is_bad and signal in _OF_WEIGHTS:
                is_bad = bool(nonfinite_rows(Block.from_records([record]), signal)[0])
            if is_bad != was_inside:
                self._is_inside[signal] = is_bad
                if is_bad:
                    is_overflow = (
                        signal == signals.GRAD_NORM and signals.LOSS_SCALE in record.signals
                    )
                    severity = self._under_scaler if is_overflow else Severity.ALARM
                    findings.append(self.finding(record, SYMPTOMS[signal], severity, signal))
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows in which a stretch of non-finite values begins or ends."""
        is_relevant = np.zeros(len(block), dtype=np.bool_)
        for signal, was_inside in self._is_inside.items():
            rows = np.flatnonzero(block.column(signal).present)
            is_bad = nonfinite_rows(block, signal)[rows]
            is_relevant[rows[np.diff(is_bad, prepend=was_inside)]] = True
        return np.flatnonzero(is_relevant)


# FrozenUpdates: updates or gradients that are exactly zero while the learning rate is not.
#
# A step that a loss scaler skips, or that was discarded on purpose, has a zero update as well, so
# zeros are needed over several steps. Groups are judged one by one: in the global norm a frozen one
# is hidden by the others.

MIN_TICKS = 16
"""Ticks from the first zero to the last, both counted. Chosen: a scaler that finds its first scale
skips up to a dozen steps."""

MIN_ZEROS = 8
"""Zeros in a row, where not every step is measured. Chosen: half of those of a run that measures
every step, so that measuring every second one finds it as soon."""

LONGER = 10
"""Times the longest stretch of zeros so far that a new one must last. Chosen: a policy that solves
most of its tasks, or a hinge loss, has whole batches without a gradient, and ever more of them."""

NOTHING_LEFT = 1e-6
"""A loss this near to 0 has no gradient, and that is no fault where single batches without one came
before: a hinge that all samples pass, a policy whose prompts are all solved. Where none did, the
policy died. The norms of groups are recorded too seldom to show that. Chosen: the rounding of
float32 around 1 is 1e-7."""

_PREFIXES = (signals.UPDATE_NORM, signals.GRAD_NORM_OF)


class FrozenUpdates(Detector):
    """One finding for each signal that stays at zero."""

    name = "frozen"

    def __init__(self) -> None:
        self._zeros: dict[str, int] = {}
        """Zeros in a row, by signal; only signals that are at zero now."""
        self._since: dict[str, int] = {}
        """The tick of the first of them."""
        self._longest: dict[str, int] = {}
        """The longest stretch that is over, in zeros."""
        self._reported: dict[str, bool] = {}

    def update(self, record: Record) -> list[Finding]:
        recorded = record.signals
        if 0.0 not in recorded.values() and not self._zeros:
            return []
        if recorded.get(signals.LR, 1.0) == 0.0 or recorded.get(signals.DISCARDED, 0.0) == 1.0:
            return []
        is_done = abs(recorded.get(signals.LOSS, 1.0)) < NOTHING_LEFT
        findings = []
        for name, value in recorded.items():
            if not _is_judged(name):
                continue
            if is_done and (name != signals.GRAD_NORM or name in self._longest):
                continue
            if self._is_frozen(name, value, record.tick):
                facts = {"records": float(self._zeros[name])}
                findings.append(
                    self.finding(
                        record, Symptom.FROZEN, Severity.ALARM, name, value=0.0, facts=facts
                    )
                )
        return findings

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows in which a norm is recorded, from the first zero on."""
        columns = [column for name, column in block.columns.items() if _is_judged(name)]
        is_relevant = np.zeros(len(block), dtype=np.bool_)
        is_zero = np.zeros(len(block), dtype=np.bool_)
        for column in columns:
            is_relevant |= column.present
            is_zero |= column.present & (column.values == 0.0)
        rows = np.flatnonzero(is_relevant)
        if self._zeros:
            return rows
        return rows[rows >= np.argmax(is_zero)] if is_zero.any() else rows[:0]

    def _is_frozen(self, name: str, value: float, tick: int) -> bool:
        """Return whether a signal has been at zero for long enough, once for each stretch."""
        if value != 0.0:
            zeros = self._zeros.pop(name, 0)
            if zeros > self._longest.get(name, 0):
                self._longest[name] = zeros
            self._since.pop(name, None)
            self._reported.pop(name, None)
            return False
        if name in self._reported:
            self._zeros[name] += 1
            return False
        zeros = self._zeros[name] = self._zeros.get(name, 0) + 1
        ticks = tick - self._since.setdefault(name, tick) + 1
        if zeros < max(MIN_ZEROS, LONGER * self._longest.get(name, 0)) or ticks < MIN_TICKS:
            return False
        self._reported[name] = True
        return True


def _is_judged(name: str) -> bool:
    return name == signals.GRAD_NORM or name.startswith(_PREFIXES)


# LossScale: a loss scale that keeps falling, falls under 1, or never moves.
#
# A dynamic scaler halves its scale at each overflow and doubles it after many good steps. An
# occasional halving is how it works, and several at the start are how it finds its range.

FLOOR, LOWER_TIMES = 1.0, 65536.0
"""A scale under 1 shrinks the loss: what still overflows is nothing that a scaler can fix. It is
reported again when the scale is this many times lower still."""

FALL_WINDOW, FALLS_FOR_WARNING, FALLS_FOR_ALARM = 100, 3, 6
"""3 falls within 100 steps are a warning, 6 a collapse. Source: 3 in 100 is what published practice
for fp16 looks into; 6 in a row leave 1/64 of the scale. The scale of a healthy scaler falls about
once in the 1,000 to 2,000 steps after which it tries a higher scale."""

MIN_SETTLED = 64
"""Records with a constant scale after which a scaler has found its range."""

MAX_CONSTANT = 20_000
"""Records with a constant scale after which it is not dynamic. Source: ten times the usual growth
interval."""


class LossScale(Detector):
    """A warning for frequent falls, an alarm for more, a note on a scale that never moves."""

    name = "loss-scale"

    def __init__(self) -> None:
        self._last: float | None = None
        self._num_same = 0
        """Records since the scale last moved, up to `_num_counted`."""
        self._has_settled = self._has_moved = False
        self._floor = FLOOR
        """The scale under which the next collapse is reported."""
        self._falls: list[int] = []
        """Steps of the recent falls."""

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get(signals.LOSS_SCALE)
        if value is None or value != value:
            return []
        if value != self._last:
            return self._move(record, value)
        if self._num_same == self._num_counted:
            return []
        self._num_same += 1
        if self._has_moved or self._num_same != MAX_CONSTANT:
            return []
        return [self.finding(record, Symptom.SCALE_FROZEN, Severity.INFO, signals.LOSS_SCALE)]

    def update_many(self, block: Block) -> list[Finding]:
        column = block.column(signals.LOSS_SCALE)
        rows = np.flatnonzero(column.present)
        if self._last is None or (column.values[rows] != self._last).any():
            return [found for record in block.records(rows) for found in self.update(record)]
        # A constant scale needs no records, except the one that shows that it is frozen.
        left = MAX_CONSTANT - self._num_same - 1
        frozen = rows[left : left + 1] if left >= 0 else rows[:0]
        self._num_same = min(self._num_same + len(rows), self._num_counted)
        return [
            self.finding(record, Symptom.SCALE_FROZEN, Severity.INFO, signals.LOSS_SCALE)
            for record in block.records(frozen)
            if not self._has_moved
        ]

    @property
    def _num_counted(self) -> int:
        """How far records with a constant scale are counted: more make no difference."""
        return MIN_SETTLED if self._has_moved else MAX_CONSTANT

    def _move(self, record: Record, value: float) -> list[Finding]:
        """Judge a scale that differs from the last one."""
        findings = []
        last, self._last = self._last, value
        if last is not None:
            self._has_settled |= self._num_same >= MIN_SETTLED
            self._has_moved = True
            if value < last and self._has_settled:
                recent = [step for step in self._falls if 0 < record.step - step < FALL_WINDOW]
                self._falls = [*recent, record.step]
                if len(self._falls) == FALLS_FOR_WARNING:
                    findings.append((Symptom.OVERFLOWS, Severity.WARN))
                if len(self._falls) == FALLS_FOR_ALARM:
                    findings.append((Symptom.SCALE_COLLAPSE, Severity.ALARM))
        self._num_same = 0
        if value < self._floor:
            self._floor = value / LOWER_TIMES
            findings.append((Symptom.SCALE_COLLAPSE, Severity.ALARM))
        return [self.finding(record, *found, signals.LOSS_SCALE) for found in findings]


# AttentionLogits: attention logits beyond what softmax can use.
#
# The limits are absolute, so this also finds a run that is wrong from its first step: a learning
# rate that is far too high shows here long before it shows in the loss.

LEVELS = {Severity.WARN: 50.0, Severity.ALARM: 100.0}
"""Source: published runs; past 50 a head attends to one token only, past 100 models were lost.
Healthy runs of the lab stay under 20."""

MIN_RECORDS = 8
"""Records in a row that must be over the level: a single batch may be."""

APART_RECORDS, APART_STEPS = 3, 20
"""So many are enough if they span these steps, as those of telemetry do: they are of batches that
have nothing to do with each other."""


class AttentionLogits(Detector):
    """A warning and an alarm, each once in a run, and an alarm whenever the logits have doubled."""

    name = "attention-logits"
    needs = signals.MAX_ATTENTION_LOGIT

    def __init__(self) -> None:
        self._limits = list(LEVELS.values())
        """By level: the value over which logits are reported next."""
        self._num_over = [0] * len(LEVELS)
        """Records in a row over it."""
        self._since = [0] * len(LEVELS)
        """The step of the first of them."""

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get(signals.MAX_ATTENTION_LOGIT)
        findings: list[Finding] = []
        if value is None:
            return findings
        for at, severity in enumerate(LEVELS):
            limit = self._limits[at]
            self._num_over[at] = num_over = self._num_over[at] + 1 if value > limit else 0
            if num_over == 1:
                self._since[at] = record.step
            is_apart = record.step - self._since[at] >= APART_STEPS
            if num_over >= (APART_RECORDS if is_apart else MIN_RECORDS):
                self._num_over[at] = 0
                self._limits[at] = 2 * value if severity is Severity.ALARM else math.inf
                signal = _largest_layer(record)
                findings.append(
                    self.finding(record, Symptom.LARGE_LOGITS, severity, signal, limit=limit)
                )
        return findings


def _largest_layer(record: Record) -> str:
    """Return the signal of the layer with the largest logit, or that of the model."""
    prefix = f"{signals.MAX_ATTENTION_LOGIT}/"
    layers = [name for name in record.signals if name.startswith(prefix)]
    return max(layers, key=record.signals.__getitem__, default=signals.MAX_ATTENTION_LOGIT)


# Experts: a router that sends everything to one expert, or nothing to some.
#
# The shares are averages over records (`live/measure/experts.py`), so a single batch shows in none.
# A balancing loss comes from a log.

COLLAPSED = 0.9
"""The share of tokens that one expert gets when the others learn nothing any more. Chosen, not
measured on healthy routers."""

ROUTER_RECORDS = 3
"""Records in a row before anything is reported."""

DRIFT_TIMES, DRIFT_SHARE = 2.0, 0.5
"""A busiest expert with twice its early share, and half of all tokens, is on its way there. A
balancing loss, which grows with the square of the share, is there with twice its early value."""

EARLY_RECORDS = 8
"""Records whose largest share is that of the start."""


class Experts(Detector):
    """One finding of each kind for each router."""

    name = "experts"

    def __init__(self) -> None:
        self._num_over: dict[str, int] = {}
        """Records in a row, by symptom and signal; negative once it is reported."""
        self._early: dict[str, list[float]] = {}
        """The largest value of the first records by signal, and how many they are."""

    def update(self, record: Record) -> list[Finding]:
        findings = []
        for signal, value in record.signals.items():
            if signal.startswith(signals.DEAD_EXPERTS):
                findings += self._count(record, Symptom.DEAD_EXPERTS, Severity.WARN, signal, 0.0)
            elif signal.startswith(signals.EXPERT_MAX_SHARE):
                findings += self._count(
                    record, Symptom.EXPERT_COLLAPSE, Severity.ALARM, signal, COLLAPSED
                )
                findings += self._drift(record, signal, value, DRIFT_SHARE)
            elif signal.startswith(signals.BALANCING_LOSS):
                findings += self._drift(record, signal, value, 0.0)
        return findings

    def _drift(self, record: Record, signal: str, value: float, least: float) -> list[Finding]:
        largest, count = self._early.setdefault(signal, [0.0, 0.0])
        if count < EARLY_RECORDS:
            self._early[signal] = [max(largest, value), count + 1.0]
            return []
        limit = max(DRIFT_TIMES * largest, least)
        return self._count(record, Symptom.EXPERT_DRIFT, Severity.WARN, signal, limit)

    def relevant_rows(self, block: Block) -> IntArray:
        judged = (signals.DEAD_EXPERTS, signals.EXPERT_MAX_SHARE, signals.BALANCING_LOSS)
        names = [name for name in block.columns if name.startswith(judged)]
        if not names:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(np.any([block.column(name).present for name in names], axis=0))

    def _count(
        self, record: Record, symptom: Symptom, severity: Severity, signal: str, limit: float
    ) -> list[Finding]:
        """Count a record that is over a limit; report when there are enough in a row."""
        key = f"{symptom}: {signal}"
        count = self._num_over.get(key, 0)
        if count < 0:
            return []
        self._num_over[key] = count = count + 1 if record.signals[signal] > limit else 0
        if count < ROUTER_RECORDS:
            return []
        self._num_over[key] = -1
        return [self.finding(record, symptom, severity, signal, limit=limit)]
