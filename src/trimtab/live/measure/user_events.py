"""Events of the user in a form that a journal can hold: short, and without reading a device."""

import dataclasses
import datetime
import pathlib
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
import torch

from trimtab.journal.segments import RESERVED

MAX_TEXT, MAX_DEPTH, MAX_VALUES = 1000, 4, 200
"""Characters of a text, levels of containers and values of an event that are journalled. Chosen: an
event is a line of at most some 200 kB, and those that people write have a few numbers."""

_WRITTEN_OUT = (pathlib.PurePath, datetime.date, datetime.timedelta, torch.dtype, torch.device)
"""Classes whose text says it all."""


def plain_event(kind: Any, facts: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and facts of an event as text, numbers, dicts and lists."""
    name = str(_plain(kind))
    if name.startswith(RESERVED):
        name = name.replace(".", " ", 1)
    plain: dict[str, Any] = _Shortened().shorten(facts, 0)
    return name, plain


class _Shortened:
    """The values of one event, as many as it may have."""

    def __init__(self) -> None:
        self._num_left = MAX_VALUES

    def shorten(self, value: Any, depth: int) -> Any:
        self._num_left -= 1
        try:
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = vars(value)
            if isinstance(value, Mapping) and depth < MAX_DEPTH:
                items = islice(value.items(), max(self._num_left, 0))
                return {str(_plain(key)): self.shorten(item, depth + 1) for key, item in items}
            if isinstance(value, list | tuple | set | frozenset) and depth < MAX_DEPTH:
                items = islice(value, max(self._num_left, 0))
                return [self.shorten(item, depth + 1) for item in items]
            return _plain(value)
        except Exception:  # of a class that forbids to be looked at
            return f"<{type(value).__name__}>"


def _plain(value: Any) -> Any:
    """Return a number or text as it is, and of anything else what it is in a few words."""
    if isinstance(value, Enum):
        value = value.value
    is_on_host = type(value) is torch.Tensor and value.device.type == "cpu"
    if (is_on_host or isinstance(value, np.ndarray | np.generic)) and value.shape == ():
        value = value.item()
    if isinstance(value, _WRITTEN_OUT):
        value = str(value)
    match value:
        case None | bool() | float():
            return value
        case int() if value.bit_length() < 64:
            return value
        case str() if len(value) <= MAX_TEXT:
            return value
        case str():
            return f"{value[:MAX_TEXT]} ... ({len(value):,} characters)"
        case bytes() | bytearray():
            return f"<{len(value):,} bytes>"
        case torch.Tensor() | np.ndarray():
            kind = str(value.dtype).removeprefix("torch.")
            return f"<{type(value).__name__} of {kind} {list(value.shape)}>"
    return f"<{type(value).__name__}>"
