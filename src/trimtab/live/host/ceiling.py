"""Ceiling: tells a gradient norm that was clipped before we saw it from one that was not.

An optimizer hook runs after the user's own clipping, so a clipped gradient shows the clip value and
nothing of its true size. A norm below the clip value was not touched and is true.
"""

import math

_TOLERANCE = 1e-4
"""`clip_grad_norm_` divides by norm + 1e-6, so a clipped norm is short of the clip value by a
millionth of its size and by rounding, which in half precision is larger."""

_ROUND_TOLERANCE = 1e-5
"""How near to a round number a norm has to be at its first touch. Tighter, because any norm may
come near one by chance: at 1e-4 one unclipped run in ten had such a norm."""


class Ceiling:
    """Watches norms for the one value that they reach and never pass."""

    def __init__(self) -> None:
        self._largest = 0.0

    def holds(self, norm: float) -> bool:
        """Whether this norm sits at a ceiling."""
        if not math.isfinite(norm) or norm <= 0 or norm < self._largest * (1 - _TOLERANCE):
            return False
        if norm <= self._largest * (1 + _TOLERANCE):
            return True  # the largest so far, a second time
        self._largest = norm
        return _is_round(norm)


def _is_round(norm: float) -> bool:
    """Whether the norm is a number that somebody would write: clip values have one or two digits.

    By chance 8 in 10,000 norms are; one that is also the largest so far is then taken for clipped,
    which loses a value and tells no untruth.
    """
    written = float(f"{norm:.1e}")
    return abs(norm - written) <= _ROUND_TOLERANCE * written
