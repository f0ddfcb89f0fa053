"""Plain values: what can be saved and read back without unpickling arbitrary objects.

A checkpoint may come from anywhere, and unpickling runs code. So what a rank saves for itself is
made of tensors, numbers, text, bytes, None, dicts, lists and tuples, and is read with
`weights_only=True`.
"""

import dataclasses
from typing import Any

import numpy as np
import torch

_ARRAY = "trimtab: array of "


def to_plain(value: Any) -> Any:
    """The value as plain ones; raises TypeError if a part of it is anything else."""
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.Tensor):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {_ARRAY + str(value.dtype): value.tolist()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {to_plain(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [to_plain(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    raise TypeError(f"a {type(value).__name__} cannot be saved as plain values")


def from_plain(value: Any) -> Any:
    """The value again, with its arrays; dataclasses stay dicts of their fields."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((key, part),) = value.items()
            if isinstance(key, str) and key.startswith(_ARRAY):
                return np.array(part, dtype=key.removeprefix(_ARRAY))
        return {key: from_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(from_plain(part) for part in value)
    return value
