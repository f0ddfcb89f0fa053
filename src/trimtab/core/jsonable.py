"""Values of the house as JSON, in which NaN and the infinities survive.

JSON has no word for them, and some writers turn them into null: here they are the strings
"NaN", "Infinity" and "-Infinity", while null means that nothing was recorded.
"""

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_jsonable(value: Any) -> Any:
    """The value in terms of dict, list, str, int, float, bool and None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _word(value)
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(part) for part in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    # A numpy scalar; asked by its method so that this module does not load numpy.
    return to_jsonable(value.item()) if hasattr(value, "item") else str(value)


def to_number(value: Any) -> float | None:
    """The number behind a JSON value, or None if it is not a number."""
    if isinstance(value, str):
        return _WORDS.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
