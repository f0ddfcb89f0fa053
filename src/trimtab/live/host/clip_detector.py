"""ClipDetector: tells norms that were clipped before they were seen from true ones."""

import math

_TOLERANCE = 1e-4
"""`clip_grad_norm_` divides by norm + 1e-6, so a clipped norm is short of the clip value by a
millionth of its size and by rounding, which in half precision is larger."""

_ROUND_TOLERANCE = 1e-5
"""How near to a round number a norm has to be at its first touch. Tighter, because any norm may
come near one by chance: at 1e-4 one unclipped run in ten had such a norm."""


class ClipDetector:
    """Finds the one value that norms reach and never pass: they were clipped before we saw them.

    An optimizer hook runs after the user's own clipping, so a clipped gradient shows the clip value
    and nothing of its true size. A norm below the clip value was not touched and is true.
    """

    def __init__(self) -> None:
        self._largest = 0.0
        self.num_clipped = 0
        """Norms at the present ceiling; a larger norm shows that there was none."""

    def is_clipped(self, norm: float) -> bool:
        """Whether this norm sits at the largest value so far."""
        if not math.isfinite(norm) or norm <= 0 or norm < self._largest * (1 - _TOLERANCE):
            return False
        if norm <= self._largest * (1 + _TOLERANCE):
            self.num_clipped += 1
            return True  # the largest so far, a second time
        self._largest = norm
        self.num_clipped = int(_is_round(norm))
        return self.num_clipped > 0


def _is_round(norm: float) -> bool:
    """Whether the norm is a number that people write: clip values have one or two digits.

    By chance 8 in 10,000 norms are; one that is also the largest so far is then taken for clipped,
    which loses a value and records nothing false.
    """
    written = float(f"{norm:.1e}")
    return abs(norm - written) <= _ROUND_TOLERANCE * written
