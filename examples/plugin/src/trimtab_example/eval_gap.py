"""EvalGap: the evaluation loss rises while the training loss still falls."""

import math

from trimtab.core.block import Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Explanation, Finding, Severity
from trimtab.core.signals import EVAL_LOSS, LOSS

PATIENCE = 3
"""Evaluations above the best one before it is a finding: one or two are often noise."""

SMOOTHING = 0.02
"""Weight of each new training loss in its running mean: about the last 50 records."""


class EvalGap(Detector):
    """Finds overfitting in a run that records `eval_loss`."""

    name = "eval-gap"

    def __init__(self) -> None:
        self.train_loss: float | None = None
        self.train_loss_at_best = 0.0
        self.best = math.inf
        self.best_step = 0
        self.worse = 0

    def update(self, record: Record) -> list[Finding]:
        """Judge the next record."""
        loss = record.signals.get(LOSS, math.nan)
        if math.isfinite(loss):
            past = loss if self.train_loss is None else self.train_loss
            self.train_loss = past + SMOOTHING * (loss - past)
        eval_loss = record.signals.get(EVAL_LOSS, math.nan)
        if not math.isfinite(eval_loss) or self.train_loss is None:
            return []
        if eval_loss < self.best:
            self.best, self.best_step = eval_loss, record.step
            self.train_loss_at_best = self.train_loss
            self.worse = 0
            return []
        self.worse += 1
        if self.worse != PATIENCE or self.train_loss >= self.train_loss_at_best:
            return []
        return [self._finding(record)]

    def _finding(self, record: Record) -> Finding:
        return self.finding(
            record,
            "evaluation loss rising",
            Severity.ALARM,
            signal=EVAL_LOSS,
            expected=self.best,
            explanation=Explanation(
                cause_id="EX1",
                cause_title="overfitting",
                remedy=f"Keep the checkpoint of step {self.best_step}, the best evaluation so far; "
                "train on more data or for fewer epochs.",
            ),
        )
