"""Golden values of Megatron-LM: one JSON document with a table of steps per metric.

{"lm loss": {"start_step": 1, "end_step": 100, "step_interval": 5, "values": {"1": 10.8, ...}}}
Older files have a list of values instead of a table.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.errors import UnreadableLog
from trimtab.readers.cells import to_number
from trimtab.readers.formats import Format
from trimtab.readers.json_objects import decode_json
from trimtab.readers.log_file import LogFile, Progress
from trimtab.readers.table import Table

_MARK = re.compile(rb'^\s*\{\s*"[^"]*"\s*:\s*\{\s*"(start_step|end_step|step_interval|values)"\s*:')


def read(path: Path, progress: Progress) -> Table:
    """Read a file of golden values."""
    file = LogFile(path, progress)
    try:
        document, _ = decode_json(file.read().decode("utf-8-sig", "replace").strip())
    except (ValueError, RecursionError) as error:
        raise UnreadableLog(
            f"{path} cannot be read as JSON ({error}); if it was cut off, get it whole"
        ) from error
    series = {name: _series(entry) for name, entry in _members(document).items()}
    steps = np.unique([step for values in series.values() for step in values])
    if not len(steps):
        raise UnreadableLog(f"{path} holds no value at any step; give Megatron's golden values")
    table = Table()
    rows = table.new_rows(len(steps))
    table.add("step", rows, steps)
    for name, values in series.items():
        if name != "step":
            positions = np.searchsorted(steps, np.array(list(values), dtype=np.float64))
            table.add(name, rows[positions], _array(values))
    return table


def recognises(head: bytes) -> bool:
    """Whether these bytes begin with a metric that holds a table of steps."""
    return _MARK.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def _series(entry: Any) -> dict[float, float]:
    """Step to value; a value that is text means that the step was not recorded."""
    fields = _members(entry)
    values = fields.get("values")
    if isinstance(values, list):
        start, interval = fields.get("start_step"), fields.get("step_interval")
        if not isinstance(start, float) or not isinstance(interval, float):
            return {}
        values = {repr(start + position * interval): value for position, value in enumerate(values)}
    series: dict[float, float] = {}
    for key, value in _members(values).items():
        step = _step(key)
        if step is not None and isinstance(value, float):
            series[step] = value
    return series


def _step(key: str) -> float | None:
    try:
        step = to_number(key)
    except ValueError:
        return None
    return step if step is not None and np.isfinite(step) else None


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _array(values: Mapping[float, float]) -> FloatArray:
    return np.array(list(values.values()), dtype=np.float64)


GOLDEN = Format(
    name="megatron-golden",
    description="golden values of Megatron-LM",
    suffixes=(),
    matches=recognises,
    load=read,
)
"""The format."""
