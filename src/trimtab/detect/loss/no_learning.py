"""NoLearning: a loss that is no better than the frequency of the tokens.

`token_rarity` is what a model would lose that knows how often each token occurs, and nothing of
what came before it. A model that stays there does not use its context: attention has collapsed, the
rate is far too high, or signals do not get through its layers.
"""

import math
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import LOSS, TOKEN_RARITY
from trimtab.detect.known_events import Known
from trimtab.detect.rates import FALSE_PER_10K
from trimtab.detect.tools.rows import Row, Seen

NO_BETTER = 0.05
"""Nats under the token frequencies. Source: models of the lab that never learned to look back stay
within that of them, in either direction."""

PATIENCE, MEAN_OF = 512, 128
"""Records that learning may take to begin, and whose mean is judged. Source: the slowest healthy
run of the lab, on batches of a few dozen tokens, is 0.6 nats under them by then."""


class NoLearning:
    """One finding for a run, or for a stretch in which it has lost what it had learned."""

    name = "no-learning"
    hears = Known.NOTHING

    def __init__(self) -> None:
        self._count = 0
        self._part, self._total = 0, 0.0
        self._was_told = False

    def hear(self, known: Known) -> None:
        """Nothing excuses it."""

    def take(self, row: Row) -> list[Finding]:
        """Judge one record."""
        loss, rarity = row.signals.get(LOSS), row.signals.get(TOKEN_RARITY)
        if loss is None or rarity is None:
            return []
        finding = self._judge(Seen(row.tick, row.step, loss), rarity)
        return [] if finding is None else [finding]

    def sweep(self, block: Block) -> list[Finding]:
        """Judge many records, as `take` would judge one after the other."""
        loss, rarity = block.columns.get(LOSS), block.columns.get(TOKEN_RARITY)
        if loss is None or rarity is None:
            return []
        rows = np.flatnonzero(loss.present & rarity.present)
        ticks, steps = block.tick[rows].tolist(), block.step[rows].tolist()
        seen = map(Seen, ticks, steps, loss.values[rows].tolist())
        found = map(self._judge, seen, rarity.values[rows].tolist())
        return [finding for finding in found if finding is not None]

    def state_dict(self) -> dict[str, Any]:
        """The mean that is being taken."""
        parts = [self._count, self._part, self._total]
        return {"parts": parts, "was_told": self._was_told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        self._count, self._part, self._total = state["parts"]
        self._was_told = bool(state["was_told"])

    def _judge(self, seen: Seen, rarity: float) -> Finding | None:
        better = rarity - seen.value
        if not math.isfinite(better):
            return None
        self._count += 1
        if self._count <= PATIENCE - MEAN_OF:
            return None
        self._part += 1
        self._total += better
        if self._part < MEAN_OF:
            return None
        mean = self._total / MEAN_OF
        self._part, self._total = 0, 0.0
        was_told, self._was_told = self._was_told, mean < NO_BETTER
        if was_told or not self._was_told:
            return None
        return Finding(
            detector=self.name,
            symptom=Symptom.NO_LEARNING,
            severity=Severity.ALARM,
            signal=LOSS,
            step=seen.step,
            tick=seen.tick,
            value=seen.value,
            expected=rarity,
            false_per_10k=FALSE_PER_10K.get(self.name),
            facts={"better_by": mean},
        )
