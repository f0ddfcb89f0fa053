"""Norm spikes: a gradient or update many times larger than usual, often before the loss shows it.

In the one public trace of a spike at 176B the gradient norm rises 4, 10, 66 and 600 times over four
steps while the loss stands still; in a 32B run the update norm led even that. One large norm is a
batch: a warning. Two in a row, or one that dwarfs all, is an alarm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import GRAD_NORM, GRAD_TO_V_RMS, UPDATE_NORM
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.baseline import Score, Scores
from trimtab.detect.tools.rows import Seen, Series

LEAST_SCORE = 8.0
"""Scales above what was expected, whatever the ratio; also where a norm is kept out of its own
baseline. Source: in healthy every-step runs two neighbours exceed 8 only at ratios under 2.3."""

PAIR_SCORE, PAIR_RATIO, ALARM_RATIO = 5.0, 2.5, 3.0
"""Two neighbours, each at least so far off, whose ratios have this geometric mean. Source: in
healthy every-step runs two neighbours both reach 2.2, one alone exceeds 3 about twice in 10,000
steps (measured). A first step of 2.9 and a second of 9.5 are seen at the second."""

TRIPLE_RATIO, TRIPLE_MEAN = 2.0, 2.25
"""Three neighbours, the same. Source: in healthy every-step runs all three reach 1.9 (measured)."""

DWARFING_RATIO = 20.0
"""One norm that many times larger. Source: healthy every-step public runs reach 6.5, the lab's runs
with tiny batches 13 (measured on tuning runs); between 10 and 30 as many faults are found."""

_PAIR, _ALARM = math.log(PAIR_RATIO), 2 * math.log(ALARM_RATIO)
_TRIPLE, _TRIPLE_ALARM = math.log(TRIPLE_RATIO), 3 * math.log(TRIPLE_MEAN)
_DWARFING = math.log(DWARFING_RATIO)


@dataclass(frozen=True, slots=True)
class _Norm:
    """What is asked of one signal."""

    symptom: Symptom
    warn_ratio: float
    alarms: bool


NORMS = {
    GRAD_NORM: _Norm(Symptom.GRADIENT_SPIKE, 3.0, True),
    # Marin 32B: twice the usual update came before the gradient and the loss.
    UPDATE_NORM: _Norm(Symptom.UPDATE_SPIKE, 2.0, True),
    # Published spikes follow one to eight steps after g^2/v has left 1; it never blows up alone.
    GRAD_TO_V_RMS: _Norm(Symptom.STALE_MOMENT, 2.0, False),
}


class NormSpike:
    """Warnings and alarms of one norm; its scores are those of the norm's logarithm."""

    name = "norm-spike"

    def __init__(self, signal: str) -> None:
        self._signal = signal
        self._norm = NORMS[signal]
        self._least = math.log(self._norm.warn_ratio)
        self._last = (0.0, 0.0)
        """Logarithms of how many times too large the two norms before were, where far off."""

    def take(self, seen: Seen, log_norm: float, score: Score | None) -> Finding | None:
        """Judge a finite, positive norm."""
        second, first = self._last
        excess = 0.0
        if score is not None and score.z > PAIR_SCORE:
            excess = log_norm - score.expected
        self._last = first, excess
        if score is None or score.z <= LEAST_SCORE:
            return None
        pair = min(first, excess) > _PAIR and first + excess > _ALARM
        three = first + second + excess
        triple = min(first, second, excess) > _TRIPLE and three > _TRIPLE_ALARM
        is_strong = pair or triple or excess > _DWARFING
        return self._finding(seen, score, is_strong) if is_strong or excess > self._least else None

    def sweep(self, series: Series, log_norms: FloatArray, scores: Scores) -> list[Finding]:
        """Judge many norms, as `take` would judge one after the other."""
        if not len(series):
            return []
        excess = np.where(scores.z > PAIR_SCORE, log_norms - scores.expected, 0.0)
        known = np.concatenate((self._last, excess))
        second, first = known[:-2], known[1:-1]
        self._last = float(known[-2]), float(known[-1])
        two, three = np.minimum(first, excess), first + second + excess
        strong = (two > _PAIR) & (first + excess > _ALARM)
        strong |= (np.minimum(two, second) > _TRIPLE) & (three > _TRIPLE_ALARM)
        strong |= excess > _DWARFING
        findings = []
        told = (scores.z > LEAST_SCORE) & (strong | (excess > self._least))
        for at in np.flatnonzero(told).tolist():
            score = scores.one(at)
            if score is not None:
                findings.append(self._finding(series.one(at), score, bool(strong[at])))
        return findings

    def state_dict(self) -> dict[str, Any]:
        """How far off the last two norms were."""
        return {"last": list(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        second, first = state["last"]
        self._last = second, first

    def _finding(self, seen: Seen, score: Score, is_strong: bool) -> Finding:
        # Between two records of a thinned log lie steps that nobody saw: there it is a warning.
        is_alarm = is_strong and self._norm.alarms and score.stride < 2
        expected = math.exp(score.expected)
        return Finding(
            detector=self.name,
            symptom=self._norm.symptom,
            severity=Severity.ALARM if is_alarm else Severity.WARN,
            signal=self._signal,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            expected=expected,
            limit=expected * self._norm.warn_ratio,
            false_per_10k=FALSE_PER_10K[self.name] if is_alarm else None,
            facts={"score": score.z, "ratio": seen.value / expected},
        )


def logarithms(values: Sequence[float]) -> FloatArray:
    """Natural logarithms, by the one function that rounds alike for one value and for many."""
    return np.fromiter(map(math.log, values), dtype=np.float64, count=len(values))
