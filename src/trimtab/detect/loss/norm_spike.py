"""NormSpike: a gradient or update many times larger than usual, often before the loss shows it.

In the one public trace of a spike at 176B the gradient norm rises 4, 10, 66 and 600 times over four
steps while the loss does not move; in a 32B run the update norm rose even before that. One large
norm is a batch, however large: a warning. Two in a row are an alarm.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import GRAD_NORM, GRAD_TO_V_RMS, UPDATE_NORM, UPDATE_PER_LR
from trimtab.core.state import Stateful
from trimtab.detect.tools.baseline import Score, Scores
from trimtab.detect.tools.series import Point, Series

MIN_SCORE = 8.0
"""Scales above what was expected, whatever the ratio; from there a norm is also kept out of its
baseline. Source: in healthy every-step runs two neighbours exceed 8 only at ratios under 2.3."""

PAIR_SCORE, PAIR_RATIO, ALARM_RATIO = 5.0, 2.5, 3.0
"""Two neighbours, each at least this far off, whose ratios have this geometric mean. Source: in
healthy every-step runs two neighbours both reach 2.2, one alone exceeds 3 about twice in 10,000
steps (measured). A first step of 2.9 and a second of 9.5 are found at the second."""

TRIPLE_RATIO, TRIPLE_MEAN = 2.0, 2.25
"""Three neighbours, the same. Source: in healthy every-step runs all three reach 1.9 (measured)."""

MAX_FALL = 0.05
"""How far, as a logarithm, an update norm may fall from one record to the next and still hold. The
momentum of Adam (beta1 of 0.9) lets one large gradient decay by 0.1 a step: that is one event."""

RISING_LOSS_SCORE = 2.0
"""Scales of the loss from which it rises with the norm: in a thinned log, where a strong norm alone
is a warning, that makes it an alarm. Source: a loss that rises slowly is followed by its baseline
and stays under 3 scales; noise is over 2 in one record of 40, over 1 in one of 6."""

USUAL_RANK, USUAL_TICKS, MAX_LARGE = 3, 2048, 64
"""Where single large norms come again and again (a rare class, a jackpot), two in a row are chance:
the mean of their logarithms must exceed the third highest among those of the last 2,048 records, of
which so many are remembered."""

HUGE_RATIO, SPARSE = 30.0, 2.0
"""In a log with this many steps from record to record, one norm this many times larger is strong:
it may be one of several. Source: the textbook's limit of a long-tail batch."""

_HUGE = math.log(HUGE_RATIO)
_PAIR, _ALARM = math.log(PAIR_RATIO), 2 * math.log(ALARM_RATIO)
_TRIPLE, _TRIPLE_ALARM = math.log(TRIPLE_RATIO), 3 * math.log(TRIPLE_MEAN)


@dataclass(frozen=True, slots=True)
class _Norm:
    """The limits of one signal."""

    symptom: Symptom
    warn_ratio: float
    alarms: bool
    has_memory: bool = False
    """Whether one large value makes the next ones large: several count only if they do not fall."""
    better: str = ""
    """A signal that is judged instead where it is recorded."""


NORMS = {
    GRAD_NORM: _Norm(Symptom.GRADIENT_SPIKE, 3.0, True),
    # Marin 32B: twice the usual update came before the gradient and the loss.
    UPDATE_PER_LR: _Norm(Symptom.UPDATE_SPIKE, 2.0, True, has_memory=True),
    # In a warm-up it doubles while nothing is wrong.
    UPDATE_NORM: _Norm(Symptom.UPDATE_SPIKE, 2.0, True, has_memory=True, better=UPDATE_PER_LR),
    # Published spikes follow one to eight steps after g^2/v has left 1; it never blows up alone.
    GRAD_TO_V_RMS: _Norm(Symptom.STALE_MOMENT, 2.0, False),
}


class NormSpike(Stateful):
    """Warnings and alarms of one norm; its scores are those of the norm's logarithm."""

    name = "norm-spike"
    not_saved = ("_signal", "_norm", "_log_warn_ratio")

    def __init__(self, signal: str) -> None:
        self._signal = signal
        self._norm = NORMS[signal]
        self._log_warn_ratio = math.log(self._norm.warn_ratio)
        self._last = (0.0, 0.0)
        """Logarithms of how many times too large the last two norms were; 0 where they were
        usual."""
        self._large: list[tuple[int, float]] = []
        """Tick and the same logarithm of the latest norms that were a mere warning."""

    def update_many(self, series: Series, log_norms: FloatArray, scores: Scores) -> list[Finding]:
        """Judge the next norms, which are finite and positive."""
        if not len(series):
            return []
        excess = np.where(scores.z > PAIR_SCORE, log_norms - scores.expected, 0.0)
        known = np.concatenate((self._last, excess))
        second, first = known[:-2], known[1:-1]
        self._last = float(known[-2]), float(known[-1])
        two, three = np.minimum(first, excess), first + second + excess
        is_far = scores.z > MIN_SCORE
        strong = is_far & (two > _PAIR) & (first + excess > _ALARM)
        triple = (np.minimum(two, second) > _TRIPLE) & (three > _TRIPLE_ALARM)
        strong |= triple
        if self._norm.has_memory:
            strong &= excess > first - MAX_FALL
        huge = is_far & (scores.stride >= SPARSE) & (excess > _HUGE)
        mean = np.where(triple, three / 3, 0.5 * (first + excess))
        findings = []
        found = strong | (is_far & (huge | (excess > self._log_warn_ratio)))
        for at in np.flatnonzero(found).tolist():
            point = series.one(at)
            is_strong = bool(strong[at]) and self._is_unusual(float(mean[at]), point.tick)
            is_strong |= bool(huge[at])
            if not is_strong:
                self._large = [*self._large[-MAX_LARGE:], (point.tick, float(excess[at]))]
            findings.append(self._finding(point, scores.one(at), is_strong))
        return findings

    def _is_unusual(self, mean: float, tick: int) -> bool:
        """Return whether several large norms are larger than single ones of this run."""
        highest = sorted(excess for at, excess in self._large if tick - at <= USUAL_TICKS)
        return len(highest) < USUAL_RANK or mean > highest[-USUAL_RANK]

    def _finding(self, point: Point, score: Score, is_strong: bool) -> Finding:
        # Between two records of a thinned log lie steps that were not recorded: only a warning.
        is_alarm = is_strong and self._norm.alarms and score.stride < SPARSE
        expected = math.exp(score.expected)
        return point.finding(
            self.name,
            self._norm.symptom,
            Severity.ALARM if is_alarm else Severity.WARN,
            self._signal,
            expected=expected,
            limit=expected * self._norm.warn_ratio,
            facts={
                "score": score.z,
                "ratio": point.value / expected,
                "is_strong": float(is_strong and self._norm.alarms),
            },
        )


def with_loss(warning: Finding, loss_z: float) -> Finding:
    """Raise the warning to an alarm if the loss rises with the norm: the run blows up."""
    if warning.facts["is_strong"] and loss_z > RISING_LOSS_SCORE:
        return dataclasses.replace(warning, severity=Severity.ALARM)
    return warning


def logarithms(values: Sequence[float]) -> FloatArray:
    """Natural logarithms by `math.log`: numpy's may round differently."""
    return np.fromiter(map(math.log, values), dtype=np.float64, count=len(values))
