"""Faults of fine-tuning that its loss does not show.

NoTargets  batches in which no label counts, so that nothing is learnt
HeldOut    a held-out loss that rises while the loss in training falls
"""

import math
from collections import deque

import numpy as np

from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Explanation, Finding, Severity, Symptom
from trimtab.core.robust import median
from trimtab.core.signals import EVAL_LOSS, GRAD_NORM, LOSS, POLICY_SIGNALS, TOKENS

# NoTargets: all labels are ignored. A guard sees that no token counts; a log has a loss of exactly
# 0 from its first record on with a gradient of 0 or NaN, or a loss of NaN with a gradient of 0.

MIN_EMPTY, MIN_QUIET = 4, 16
"""Such records in a row; the second where loss and gradient are both 0 and tokens are not counted.
Chosen: one batch may be all prompt, and a policy that has found no reward yet is as quiet."""


class NoTargets(Detector):
    """One alarm for each stretch of batches without a target."""

    name = "no-targets"

    def __init__(self) -> None:
        self._has_learnt = False
        """Whether a loss other than 0 was recorded: from then on a loss of 0 is a success."""
        self._num_empty = 0
        self._is_reported = False

    def update(self, record: Record) -> list[Finding]:
        signals = record.signals
        tokens, loss = signals.get(TOKENS, math.nan), signals.get(LOSS, math.nan)
        norm = signals.get(GRAD_NORM, 1.0)
        is_zero = (loss == 0.0 and not norm > 0.0) or (
            LOSS in signals and loss != loss and norm == 0
        )
        is_zero = is_zero and POLICY_SIGNALS.isdisjoint(signals)
        is_empty = tokens == 0.0 or (is_zero and not self._has_learnt)
        self._has_learnt |= math.isfinite(loss) and loss != 0.0
        is_quiet = tokens != 0.0 and loss == 0.0 and norm == 0.0
        self._num_empty = min(self._num_empty + 1, MIN_QUIET) if is_empty else 0
        self._is_reported &= is_empty
        if self._is_reported or self._num_empty < (MIN_QUIET if is_quiet else MIN_EMPTY):
            return []
        self._is_reported = True
        explanation = Explanation(
            cause_id="masked-labels",
            cause_title="all labels masked",
            remedy="Mask the prompt only: look at the chat template, the response marker and the "
            "length limit; trimtab.check counts the targets of the first batches.",
        )
        signal = TOKENS if tokens == 0.0 else LOSS
        return [
            self.finding(
                record, Symptom.NO_TARGETS, Severity.ALARM, signal, explanation=explanation
            )
        ]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows of empty batches and those after them; all until a loss is recorded."""
        loss, tokens = block.column(LOSS), block.column(TOKENS)
        other = np.flatnonzero(loss.finite & (loss.values != 0.0))
        first = 0 if self._has_learnt else int(other[0]) if len(other) else len(block) - 1
        is_empty = tokens.present & (tokens.values == 0.0)
        is_relevant = is_empty.copy()
        is_relevant[1:] |= is_empty[:-1]
        is_relevant[: first + 1] = True
        return np.flatnonzero(is_relevant)


# HeldOut: the held-out loss has left its best while the loss in training is lower than then. A
# little of it is ordinary overfitting, and a note. Where it lasts, or where the held-out loss is
# higher than it was at the first evaluation, training makes the model worse at what it is measured
# by.

LITTLE, HARM = 0.05, 0.1
"""Shares: above the best evaluation for a note, above the first one for an alarm. Chosen: two
evaluations of the same data differ by less."""

IN_A_ROW, LASTING, NUM_LOSSES = 2, 3, 16
"""Evaluations that must agree, those above the best one that last, and losses whose median is the
loss in training. Chosen: no public tuning run, stranger or console log that is healthy has three
beyond what it has come back from before."""

NOISE_OF, MIN_KNOWN, NOISE_TIMES = 12, 6, 3.0
"""Evaluations whose second differences are their noise, how many there must be, and how much of it
a rise must exceed.
Chosen: flat evaluations with a noise of 2 % are called overfitting in 2 to 15 % of runs, without
this in 13 to 23 %; a rise of 20 % under that noise is then mostly missed."""


class HeldOut(Detector):
    """A note and an alarm, each once until there is a better evaluation."""

    name = "held-out"
    listens_to = KnownChange.CHANGED

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=NUM_LOSSES)
        self._latest: deque[float] = deque(maxlen=NOISE_OF)
        self._first, self._first_loss = math.nan, math.nan
        self._best, self._best_loss, self._best_step = math.inf, math.nan, 0
        """The first and the best evaluation, with the loss in training at that time."""
        self._highest = self._came_back = 1.0
        """Times the best one: the highest evaluation since, and the highest before a better one."""
        self._is_noted = self._is_reported = False

    def on_event(self, change: KnownChange) -> None:
        """Begin again: the data or the objective may be different ones."""
        self._losses.clear()
        self._latest.clear()
        self._first, self._best = math.nan, math.inf
        self._highest = self._came_back = 1.0
        self._is_noted = self._is_reported = False

    def update(self, record: Record) -> list[Finding]:
        loss, value = (record.signals.get(name, math.nan) for name in (LOSS, EVAL_LOSS))
        if math.isfinite(loss):
            self._losses.append(loss)
        if not 0.0 < value < math.inf or not self._losses:
            return []
        loss = median(self._losses)
        self._latest.append(value)
        if math.isnan(self._first):
            self._first, self._first_loss = value, loss
        if value < self._best:
            self._best, self._best_loss, self._best_step = value, loss, record.step
            self._highest, self._came_back = 1.0, max(self._came_back, self._highest)
            self._is_noted = self._is_reported = False
        now = min(list(self._latest)[-IN_A_ROW:])
        # Where few losses come between evaluations, most of these are older than the rise.
        loss = max(loss, median(list(self._losses)[-IN_A_ROW:]))
        is_worse = now > (1 + HARM) * self._first and loss < self._first_loss
        if is_worse and not self._is_reported:
            self._is_noted = self._is_reported = True
            return [self._found(record, Severity.ALARM, now, self._first)]
        is_past = now > (1 + LITTLE) * self._best and loss < self._best_loss
        # What the run has come back from before is its noise; the best one itself has not risen.
        self._highest = max(self._highest, value / self._best)
        limit = max(1 + LITTLE, self._came_back) * self._best
        bends = np.abs(np.diff(self._latest, 2))  # a steady rise has none, and noise has many
        limit = max(limit, self._best + NOISE_TIMES * median(bends.tolist() or [0.0]))
        has_lasted = len(self._latest) >= MIN_KNOWN and min(list(self._latest)[-LASTING:]) > limit
        if is_past and has_lasted and not self._is_reported:
            self._is_noted = self._is_reported = True
            return [self._found(record, Severity.ALARM, now, self._best)]
        if is_past and not self._is_noted:
            self._is_noted = True
            return [self._found(record, Severity.INFO, now, self._best)]
        return []

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with an evaluation, and the losses before them and before the end."""
        losses = np.flatnonzero(block.column(LOSS).finite)
        rows = np.flatnonzero(block.column(EVAL_LOSS).present)
        ends = np.searchsorted(losses, np.append(rows, len(block)), side="right")
        places = ends[:, None] - np.arange(1, NUM_LOSSES + 1)
        return np.union1d(rows, losses[places[places >= 0]])

    def _found(self, record: Record, severity: Severity, now: float, expected: float) -> Finding:
        explanation = Explanation(
            cause_id="overfitting",
            cause_title="overfitting or forgetting",
            remedy=f"Go back to the weights of step {self._best_step}, the best evaluation; train "
            "for fewer epochs, at a lower rate, or with data of the old kind mixed in.",
        )
        return self.finding(
            record,
            Symptom.HELD_OUT_ROSE,
            severity,
            EVAL_LOSS,
            value=now,
            expected=expected,
            facts={"best_step": float(self._best_step)},
            # A note must not explain an incident in which it happens to stand.
            explanation=explanation if severity is Severity.ALARM else None,
        )
