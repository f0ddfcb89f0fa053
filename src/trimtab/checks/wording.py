"""Numbers and names as text in a sentence."""

import math
from collections.abc import Sequence


def number(value: float) -> str:
    """Return a setting as people write it: 0.95, 3e-4, 1e-8."""
    if value != 0 and math.isfinite(value) and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.6g}"


def amount(value: float) -> str:
    """Return a count in a few characters: 850, 12k, 4.2M, 8B."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            scale = 1e3 if name == "k" else unit
            return f"{value / scale:.3g}{name}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"


def hours(seconds: float) -> str:
    """Return a duration: 40 s, 25 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"


MAX_NAMES = 3
"""Parameters or layers that are named one by one."""


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
