"""KnownChanges: an alarm that a change of the batch explains is a warning.

The noise of a batch goes with the root of its tokens: with a quarter of them, gradient norms and
the swings of the loss are twice as large, and nothing is wrong. The run itself says so, by
`tokens`. A baseline takes as long to adapt as its window is; until then what the change explains is
lowered to a warning, and what it does not explain carries it as a fact.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block, Column
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.signals import TOKENS

HELD_RECORDS = 16
"""Tokens must have held so long before: where batches differ all the time, none of it is news."""

SAME_SHARE = 0.1
"""Tokens within that share of each other are the same batch, padded otherwise."""

ADAPT_RECORDS = 128
"""The window of the baselines."""

LARGEST_RATIO = 3.0
"""Beyond the explained growth, a norm may be so many times what was expected. Source: the ratio at
which norms of healthy every-step runs turn into findings."""

NORMS = (Symptom.GRADIENT_SPIKE, Symptom.UPDATE_SPIKE)


class KnownChanges:
    """Watches the size of the batch, and lowers what it explains."""

    def __init__(self) -> None:
        self._tokens = math.nan
        """The size that holds now."""
        self._held = 0
        self._growth = 1.0
        """How much larger the noise is than before the latest change."""
        self._age = ADAPT_RECORDS
        """Records since the latest change."""

    def temper(self, block: Block, findings: Sequence[Finding]) -> list[Finding]:
        """The findings of the next records, with what is explained lowered."""
        column = block.columns.get(TOKENS)
        if column is None or (self._age >= ADAPT_RECORDS and self._stays(column)):
            return list(findings)
        growth: dict[int, float] = {}
        told = zip(
            block.tick.tolist(), column.values.tolist(), column.present.tolist(), strict=True
        )
        for tick, tokens, is_present in told:
            if is_present and 0 < tokens < math.inf:
                self._take(tokens)
            if self._age < ADAPT_RECORDS:
                growth[tick] = self._growth
        return [_tempered(item, growth.get(item.tick, 1.0)) for item in findings]

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered."""
        return {
            "tokens": self._tokens,
            "held": self._held,
            "growth": self._growth,
            "age": self._age,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the one that `state_dict` described."""
        self._tokens, self._held = state["tokens"], state["held"]
        self._growth, self._age = state["growth"], state["age"]

    def _stays(self, column: Column) -> bool:
        """Whether nothing changes here; if so, that has been noted."""
        if len(column.values) == 1:  # a live step
            stays = column.present.item() and self._is_same(column.values.item())
            self._held += stays
            return stays
        tokens = column.values[column.finite]
        tokens = tokens[tokens > 0]
        stays = bool((np.abs(tokens - self._tokens) <= SAME_SHARE * self._tokens).all())
        self._held += len(tokens) if stays else 0
        return stays

    def _is_same(self, tokens: float) -> bool:
        return abs(tokens - self._tokens) <= SAME_SHARE * self._tokens

    def _take(self, tokens: float) -> None:
        self._age = min(self._age + 1, ADAPT_RECORDS)
        if self._is_same(tokens):
            self._held += 1
            return
        if self._held >= HELD_RECORDS:
            self._growth, self._age = math.sqrt(self._tokens / tokens), 0
        self._tokens, self._held = tokens, 1


def _tempered(finding: Finding, growth: float) -> Finding:
    """The finding as it is, or as a warning if noise that grew so much explains it."""
    if growth == 1.0 or finding.expected is None:
        return finding
    if finding.symptom in NORMS:
        is_explained = finding.value <= LARGEST_RATIO * max(growth, 1.0) * finding.expected
    elif finding.symptom is Symptom.LOSS_SPIKE and finding.limit is not None:
        most = max(growth, 1.0) * (finding.limit - finding.expected)
        is_explained = finding.value - finding.expected <= most
    else:
        return finding
    lowered = growth > 1.0 and is_explained and finding.severity is Severity.ALARM
    return dataclasses.replace(
        finding,
        severity=Severity.WARN if lowered else finding.severity,
        facts={**finding.facts, "noise_growth": growth},
    )
