"""Events of the user in a form that a journal can hold: short, and without reading a device."""

import dataclasses
import datetime
import decimal
import math
import pathlib
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.journal.segments import RESERVED

MAX_TEXT, MAX_DEPTH, MAX_VALUES = 1000, 4, 200
"""Characters of a text, levels of containers and values of an event that are journalled. Chosen: an
event is a line of at most some 200 kB, and those that people write have a few numbers."""

_WRITTEN_OUT = (
    *(pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal),
    *(torch.dtype, torch.device, torch.Size),
)
"""Classes whose text says it all."""


def plain_event(kind: Any, facts: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and facts of an event as text, numbers, dicts and lists."""
    name = _shorten(kind) if isinstance(kind, str) else str(_plain(kind))
    if name.startswith(RESERVED):
        name = f"{RESERVED.rstrip('.')} {name.removeprefix(RESERVED)}"
    plain: dict[str, Any] = _Budget().plain(facts, 0)
    return name, plain


class _Budget:
    """Makes the values of one event plain, as many as it may have."""

    def __init__(self) -> None:
        self._num_left = MAX_VALUES

    def plain(self, value: Any, depth: int) -> Any:
        self._num_left -= 1
        try:
            if isinstance(value, Mapping) and depth < MAX_DEPTH:
                items = islice(value.items(), max(self._num_left, 0))
                return {_text(key): self.plain(item, depth + 1) for key, item in items}
            if isinstance(value, list | tuple | set | frozenset) and depth < MAX_DEPTH:
                items = islice(value, max(self._num_left, 0))
                return [self.plain(item, depth + 1) for item in items]
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                names = (field.name for field in dataclasses.fields(value))
                return self.plain({name: getattr(value, name) for name in names}, depth)
            return _plain(value)
        except Exception:  # of a class that forbids to be looked at
            return f"<{type(value).__name__}>"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _shorten(str(value))
    if isinstance(value, int):
        return int(value) if value.bit_length() < 64 else f"<int of {value.bit_length()} bits>"
    if isinstance(value, float):
        return float(value)
    is_on_host = type(value) is torch.Tensor and value.device.type == "cpu"
    if (is_on_host or isinstance(value, np.ndarray | np.generic)) and math.prod(value.shape) == 1:
        number = value.item()
        return number if isinstance(number, bool | int | float) else _describe(number)
    return _describe(value)


def _text(key: Any) -> str:
    return _shorten(key if isinstance(key, str) else str(_plain(key)))


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} ... ({len(text):,} characters)"


def _describe(value: Any) -> str:
    """Return what a value is in a few words, without looking into it."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor | np.ndarray):
        kind = str(value.dtype).removeprefix("torch.")
        return f"<{name} of {kind} {list(value.shape)}>"
    if isinstance(value, bytes | bytearray):
        return f"<{len(value):,} bytes>"
    if isinstance(value, _WRITTEN_OUT):
        return _shorten(str(value))
    if isinstance(value, nn.Module):
        return f"<model {name}>"
    return f"<{name}>"
