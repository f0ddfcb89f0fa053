"""A JSON document that holds a run, or several, as series and not record by record.

    {"step": [1, 2], "loss": [2.5, 2.4]}             columns
    {"loss": [[1, 2.5], [2, 2.4]]}, {"loss": {"1": 2.5}}   steps with their values
    {"run_a": {"loss": [2.5, 2.4]}, ...}             several runs by name
    [{"name": "run_a", "loss": [2.5, 2.4]}, ...]

Golden values of Megatron-LM are such a document, in older files with a list of values:
{"lm loss": {"start_step": 1, "end_step": 100, "step_interval": 5, "values": {"1": 10.8, ...}}}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.errors import UnreadableLog
from trimtab.core.text import printable
from trimtab.readers.aliases import STEP
from trimtab.readers.cells import find_number
from trimtab.readers.runs import StoredRun, choose_run, is_loss, is_step, note_choice
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.points import Points

NESTED_LEVELS = 16
"""Objects nested deeper hold no metrics; without a limit their names could fill the memory."""

NAME_CHARS = 256
"""A longer name, made by flattening, is not that of a metric."""

JsonRecord = Mapping[str, Any]


def flattened(record: JsonRecord) -> JsonRecord:
    """Return a record with the members of its objects: {"train": {"loss": 2.5}} has train/loss."""
    return _flatten(record, "", 0) if dict in map(type, record.values()) else record


def _flatten(record: JsonRecord, prefix: str, level: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix + key
        if len(name) > NAME_CHARS:
            continue
        if not isinstance(value, dict):
            flat[name] = value
        elif level < NESTED_LEVELS:
            flat |= _flatten(value, f"{name}/", level + 1)
    return flat


_LARGEST = 2.0**62
_NAMES = ("name", "run_name", "run", "run_id", "id", "label", "model", "experiment")
"""Members that name the run that an object holds."""

_PHASES = frozenset({"train", "training", "val", "valid", "validation", "eval", "test", "dev"})


_Series = list[tuple[Any, Any]]
"""Step and value, in the order of logging; the step is None if only the order is known."""


def document_table(document: Any, path: Path, wanted: Wanted) -> Table:
    """Return the run in a document, of several the wanted or the first one."""
    rows = _members(document)
    if rows and all(_finite(key) is not None and _is_row(row) for key, row in rows.items()):
        document = [{STEP: key, **row} for key, row in rows.items()]
    parts = _runs_in(document)
    runs = [StoredRun(id=name, name=name) for name in parts]
    run = choose_run(path, runs, wanted.run) if len(runs) > 1 else runs[0]
    part = parts[run.id]
    table = Table()
    if isinstance(part, list):
        table.add_records([flattened(record) for record in part if isinstance(record, dict)])
    else:
        table = _join(_series_in(part))
    if not table.num_rows:
        raise UnreadableLog(
            f"{path} holds no series of numbers; write one object per line, as in "
            '{"step": 1, "loss": 2.5}'
        )
    if len(runs) > 1:
        note_choice(table, run, runs)
    return table


def _runs_in(document: Any, level: int = 0) -> dict[str, Any]:
    """Return the parts of a document that are a run each, by name; the whole of it if it is one."""
    if isinstance(document, list):
        items = [item for item in document if isinstance(item, dict)]
        parts = {_run_name(item, number): item for number, item in enumerate(items, start=1)}
    else:
        parts = dict(_members(document))
    runs = {
        name: part
        for name, part in parts.items()
        if not _is_series(part) and holds_series(part, "loss")
    }
    if len(runs) == 1 and not any(map(_is_series, parts.values())) and level < NESTED_LEVELS:
        return _runs_in(next(iter(runs.values())), level + 1)
    if len(runs) < 2 or _PHASES & {name.lower() for name in runs}:
        return {"": document}
    return runs


def _run_name(item: JsonRecord, number: int) -> str:
    found = [item[name] for name in _NAMES if isinstance(item.get(name), str | float)]
    label = found[0] if found else float(number)
    return printable(label if isinstance(label, str) else f"{label:g}")


def holds_series(part: Any, word: str, level: int = 0) -> bool:
    """Return whether a part holds a series, or records, with this word in a name."""
    if level > NESTED_LEVELS:
        return False
    if isinstance(part, list):
        first = part[0] if part else None
        return isinstance(first, dict) and (
            any(word in name.lower() for name in flattened(first)) or is_run(first)
        )
    return any(
        word in name.lower() if _is_series(value) else holds_series(value, word, level + 1)
        for name, value in _members(part).items()
    )


def is_run(record: JsonRecord) -> bool:
    """Return whether an object holds a series of losses, and not those of one step."""
    at_step = any(isinstance(record[name], float) and is_step(name) for name in record)
    has_series = any("loss" in name.lower() and _is_series(record[name]) for name in record)
    return has_series and not at_step


def _is_series(value: Any) -> bool:
    """Return whether a value is a list of numbers or of steps with theirs, or a table of steps."""
    if isinstance(value, dict):
        return "step_interval" in value or (
            len(value) > 1 and all(_finite(key) is not None for key in value)
        )
    if not isinstance(value, list) or not value:
        return False
    kinds = {len(item) if isinstance(item, list) else type(item) for item in value}
    return kinds in ({2}, {3}) or (float in kinds and kinds <= {float, str, type(None)})


def _series_in(part: Any, prefix: str = "", level: int = 0) -> dict[str, _Series]:
    found: dict[str, _Series] = {}
    for key, value in _members(part).items():
        if _is_series(value):
            found[prefix + key] = _series(value)
        elif level < NESTED_LEVELS and len(prefix + key) < NAME_CHARS:
            found |= _series_in(value, f"{prefix}{key}/", level + 1)
    return found


def _series(value: Any) -> _Series:
    if isinstance(value, list):
        # Of a list, the last two are step and value: TensorBoard puts the time before them.
        return [(item[-2], item[-1]) if isinstance(item, list) else (None, item) for item in value]
    if "step_interval" not in value:
        return list(value.items())
    values = value.get("values")
    start, interval = _finite(value.get("start_step")), _finite(value["step_interval"])
    if isinstance(values, list) and start is not None and interval is not None:
        values = {start + n * interval: cell for n, cell in enumerate(values)}
    # In golden values, a word means that the step was not recorded.
    return [(step, cell) for step, cell in _members(values).items() if isinstance(cell, float)]


def _join(series: Mapping[str, _Series]) -> Table:
    """Return the rows of some series: by their steps, else by their order."""
    if any(map(is_step, series)):  # {"step": {"0": 10}, "loss": {"0": 2.5}}: they number the rows
        series = {name: [(None, value) for _, value in pairs] for name, pairs in series.items()}
    points = Points()
    lists: dict[str, list[Any]] = {}
    for name, pairs in series.items():
        for step, value in pairs:
            at, number = _finite(step), find_number(value)
            if at is not None and abs(at) < _LARGEST and number is not None:
                points.add(name, int(at), number, 0.0)
        if pairs and pairs[0][0] is None:
            lists[name] = [value for _, value in pairs]
    table = points.to_table()
    if table.num_rows:
        table.note_counts({"list{s} without steps {is} left out": len(lists)})
        return table
    # Lists of other lengths, such as that of the evaluations, have other steps.
    lengths = [len(lists[name]) for name in sorted(lists, key=is_loss, reverse=True)]
    rows = table.new_rows(lengths[0] if lengths else 0)
    for name, values in lists.items():
        if len(values) == len(rows):
            table.add(name, rows, values)
    others = sum(length != len(rows) for length in lengths)
    table.note_counts({"list{s} of a different length than the loss {is} left out": others})
    return table


def _finite(cell: object) -> float | None:
    number = find_number(cell)
    return number if number is not None and np.isfinite(number) else None


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and not any(
        isinstance(cell, list | dict) for cell in value.values()
    )


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
