"""Trimtab's values as JSON, with NaN and the infinities preserved.

JSON cannot express them, and some writers turn them into null: here they are the strings "NaN",
"Infinity" and "-Infinity", while null means that nothing was recorded.
"""

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_jsonable(value: Any) -> Any:
    """Return the value made of dict, list, str, int, float, bool and None."""
    if isinstance(value, float):
        # Also numpy's float64, which is a float: a plain one from here on.
        return float(value) if math.isfinite(value) else _name(value)
    if isinstance(value, IntEnum):  # before the enums, whose value would be a bare number
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    # A numpy scalar; recognised by its method so that this module does not import numpy.
    return to_jsonable(value.item()) if hasattr(value, "item") else str(value)


def number_from_json(value: Any) -> float | None:
    """Return the number in a JSON value; None if it is not a number."""
    if isinstance(value, str):
        return _NONFINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
