"""How far values of each quality can be trusted, and what follows for their scores.

A score is multiplied by the trust in its value: a half-trusted value must be twice as far off. So
poor logging makes trimtab quieter, not louder, and the finding carries its confidence.
"""

from collections.abc import Mapping

from trimtab.core.signals import Quality

TRUST = {
    Quality.RAW: 1.0,
    Quality.WINDOW_MEAN: 0.9,
    Quality.SMOOTHED: 0.6,
    Quality.POST_CLIP: 0.5,
    Quality.INFERRED: 0.3,
}
"""Chosen, not measured: neighbouring averages over n steps rise together, so their sums scatter by
up to the root of n more than sums over raw values."""


def trust_in(signal: str, qualities: Mapping[str, Quality]) -> float:
    """The trust in the values of a signal."""
    return TRUST[qualities.get(signal, Quality.RAW)] if qualities else 1.0
