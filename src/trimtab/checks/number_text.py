"""Numbers as text in a sentence."""

import math


def number(value: float) -> str:
    """A setting as people write it: 0.95, 3e-4, 1e-8."""
    if value != 0 and math.isfinite(value) and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.6g}"


def amount(value: float) -> str:
    """A count in a few characters: 850, 12k, 4.2M, 8B."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            scale = 1e3 if name == "k" else unit
            return f"{value / scale:.3g}{name}"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"


def hours(seconds: float) -> str:
    """A duration: 40 s, 25 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"
