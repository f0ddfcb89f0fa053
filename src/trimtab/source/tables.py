"""Rows and columns in memory as a table, as if a log had been read.

NaN and missing are two things. A list says None; polars, pyarrow and the nullable types of pandas
say null; an array of numpy, and so a float column of pandas, can only say NaN. There a NaN counts
as NaN, unless it only fills up a row (`_leave_out_padding`).
"""

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import BoolArray
from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import LOSS
from trimtab.core.text import counted, printable
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.cells import quoted, quoted_names
from trimtab.readers.csv_log import unique_names
from trimtab.readers.json_document import NESTED_LEVELS, document_table, flattened
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.points import Points
from trimtab.source.cells import (
    Cells,
    described,
    has,
    is_series,
    is_tensor,
    plain_cell,
    read_cells,
    to_array,
)

BY_NAME = "give its columns by name, as in {'step': a[:, 0], 'loss': a[:, 1]}"

_LAZY = ("toPandas", "compute", "collect")
"""Methods by which a frame that is not evaluated yet becomes one that is."""

SELDOM = 0.1
"""Share of rows that may be otherwise where nearly all are alike. Chosen: a frame that joins rows
of training and evaluation has none; a trainer that crashed in between leaves a few."""

LAST_ROWS = 3
"""Rows after the last loss that may be of another kind: a last evaluation, a summary. As many
non-finite losses in a row have come to stay."""

_HISTORY = "log_history"
"""Where HF's Trainer keeps what it logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A table that was handed over."""

    name: str
    """What reports call it."""
    load: Callable[[Wanted], Table]
    """Raises UnreadableLog, and whatever the package of the table raises."""
    format: str = "table"


def find_table(given: Any) -> TableSource | None:
    """Return the table that a value is; None if it is none, UnreadableLog if it cannot be read."""
    kind = type(given).__name__
    if is_series(given) or is_tensor(given):
        return _find_series(given)
    if has(given, "__array__") and not has(given, "columns"):
        return _find_series(given)
    for method in _LAZY:
        if has(given, method, "columns"):
            raise UnreadableLog(f"{described(given)} holds no rows yet; {method}() it first")
    if has(given, "columns", "iloc", "index"):
        return TableSource(name=kind, load=lambda wanted: _from_pandas(given, wanted))
    if has(given, "__arrow_c_stream__") or has(given, "column_names", "__getitem__"):
        return TableSource(name=kind, load=lambda wanted: _fill(_arrow_columns(given), wanted))
    if not isinstance(given, Mapping | Sequence) or not len(given):
        return None
    if isinstance(given, Mapping):
        return _find_mapping(given)
    if all(isinstance(row, Mapping) for row in given):
        name = f"{kind} of {counted(len(given), 'row')}"
        return TableSource(name=name, load=lambda wanted: records_table(given, wanted))
    return _find_losses(given)


# One series: the losses, in their order


def _find_series(given: Any) -> TableSource:
    array = to_array(given) if is_tensor(given) else given
    if not is_series(given):
        array = np.asanyarray(array)
        if array.dtype.names:
            columns = {name: array[name] for name in array.dtype.names}
            name = f"{type(given).__name__} of {counted(len(columns), 'column')}"
            return TableSource(name=name, load=lambda wanted: _fill(columns, wanted))
        if array.ndim > 1:
            raise UnreadableLog(
                f"{described(given)} and of shape {tuple(array.shape)} does not say what is the "
                f"loss in it; {BY_NAME}"
            )
        array = array.reshape(-1)
    label = getattr(given, "name", None) if is_series(given) else None
    loss = _column_name(label) if isinstance(label, str) and label else LOSS

    def load(wanted: Wanted) -> Table:
        if has(given, "to_frame", "iloc"):  # pandas: it has an index
            return _from_pandas(given.to_frame(loss), wanted, series=loss)
        return _fill({loss: array}, wanted, series=loss)

    return TableSource(name=f"{type(given).__name__} of {_losses(len(array))}", load=load)


def _find_losses(given: Sequence[Any]) -> TableSource | None:
    """Return the table of a list of numbers; None if it is a list of other things."""
    cells = [plain_cell(cell) for cell in given]
    others = [cell for cell in cells if not isinstance(cell, float | bool | None)]
    for cell in others:
        if isinstance(cell, list | tuple) or (has(cell, "ndim") and not has(cell, "columns")):
            raise UnreadableLog(
                f"a {type(given).__name__} with {described(cell)} in it does not say what is the "
                f"loss; {BY_NAME}"
            )
    if others and not any(isinstance(cell, float) for cell in cells):
        return None
    return TableSource(
        name=f"{type(given).__name__} of {_losses(len(given))}",
        load=lambda wanted: _fill({LOSS: cells}, wanted, series=LOSS),
    )


def _losses(count: int) -> str:
    return "1 loss" if count == 1 else f"{count:,} losses"


# Rows, columns, and whatever else a dict may hold


def history_source(name: str, history: Any) -> TableSource:
    """Return the table of what HF's Trainer logged."""
    if not isinstance(history, Sequence) or not all(isinstance(row, Mapping) for row in history):
        raise UnreadableLog(f"{name} is {described(history)}, not a list of dicts")
    return TableSource(name=name, load=lambda wanted: records_table(history, wanted), format="hf")


def records_table(rows: Iterable[Mapping[Any, Any]], wanted: Wanted) -> Table:
    """Return a table with a row for each dict.

    Where all have the same names, they may be the rows of a frame, filled up with NaN.
    """
    records = [flattened(_plain(row)) for row in rows if row]
    if len(records) > 1 and len({frozenset(record) for record in records}) == 1:
        return _fill({name: [one[name] for one in records] for name in records[0]}, wanted)
    table = Table()
    table.add_records(records)
    return table


def _find_mapping(given: Mapping[Any, Any]) -> TableSource:
    kind = type(given).__name__
    if _HISTORY in given:
        return history_source(f"{_HISTORY} of {kind}", given[_HISTORY])
    columns = {_column_name(key): value for key, value in given.items()}
    if all(map(_is_column, columns.values())):
        name = f"{kind} of {counted(len(columns), 'column')}"
        return TableSource(name=name, load=lambda wanted: _fill(columns, wanted))
    return TableSource(
        name=kind, load=lambda wanted: document_table(_plain(given), Path(kind), wanted)
    )


def _is_column(value: Any) -> bool:
    """Return whether a value is one column of numbers, not a list of pairs or of dicts."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return not value or not isinstance(value[0], list | tuple | Mapping)
    return is_series(value) or (has(value, "ndim") and value.ndim > 0)


def _plain(value: Any, level: int = 0) -> Any:
    """Return a value as JSON would hold it, with every number a float."""
    if level > NESTED_LEVELS:
        return None
    if isinstance(value, Mapping):
        return {_column_name(key): _plain(part, level + 1) for key, part in value.items()}
    if is_tensor(value):
        value = to_array(value)
    if has(value, "tolist") and getattr(value, "ndim", 0) > 0:
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part, level + 1) for part in value]
    return plain_cell(value)


def _from_pandas(frame: Any, wanted: Wanted, series: str | None = None) -> Table:
    """Return the table of a frame of pandas: its columns, and its index if that says anything."""
    names = unique_names([_column_name(name) for name in frame.columns])
    columns = {name: frame.iloc[:, place] for place, name in enumerate(names)}
    index = {}
    step = None
    for level, label in enumerate(frame.index.names):
        values = frame.index.get_level_values(level).to_numpy()
        is_count = values.dtype.kind in "iu" and bool((values[1:] > values[:-1]).all())
        is_position = is_count and bool((values == np.arange(len(values))).all())
        name = "index" if label is None else _column_name(label)
        if name in columns or (label is None and (is_position or not is_count)):
            continue
        index[name] = values
        step = name if is_count else step
    if wanted.step is not None or STEP in name_columns([*index, *names]).foreign:
        step = None
    return _fill({**index, **columns}, wanted, series=series, step=step)


def _fill(
    columns: Mapping[str, Any],
    wanted: Wanted,
    *,
    series: str | None = None,
    step: str | None = None,
) -> Table:
    """Return the table of columns; `series` is the loss and `step` the step, as it was given."""
    table = Table()
    if series is not None and LOSS not in name_columns([series]).foreign:
        table.meanings[series] = Alias(signal=LOSS, name=series)
    if step is not None:
        table.meanings[step] = Alias(signal=STEP, name=step)
        table.add_note(f"There is no step column: the index ({quoted(step)}) is the step.")
    cells = _read_columns(columns)
    loss = wanted.loss or name_columns(list(cells), meanings=table.meanings).foreign.get(LOSS)
    lengths = [len(column.present) for column in cells.values()]
    length = len(cells[loss].present) if loss in cells else max(lengths, default=0)
    cells = _of_one_length(cells, length, table)
    if loss in cells:
        _leave_out_padding(cells, loss, table)
    rows = table.new_rows(length)
    for name, column in cells.items():
        values, present = column.values, column.present
        if isinstance(values, list):
            table.add(name, rows[present], list(compress(values, present)))
        elif present.all():
            table.add(name, rows, values)
        else:
            table.add(name, rows[present], values[present])
    return table


def _read_columns(columns: Mapping[str, Any]) -> dict[str, Cells]:
    cells: dict[str, Cells] = {}
    for name, column in columns.items():
        try:
            cells[name] = read_cells(column)
        except UnreadableLog as error:
            raise UnreadableLog(f"{quoted(name)}: {error}") from None
    return cells


def _of_one_length(cells: Mapping[str, Cells], length: int, table: Table) -> dict[str, Cells]:
    """Return the columns as long as the loss: those of evaluations have other steps."""
    kept = {name: column for name, column in cells.items() if len(column.present) == length}
    others = [name for name in cells if name not in kept]
    if others:
        table.add_note(
            f"Columns of a different length than the loss, left out: {quoted_names(others)}."
        )
    return kept


def _leave_out_padding(cells: Mapping[str, Cells], loss: str, table: Table) -> None:
    """Make NaN missing where it fills up a row, in columns that cannot say "missing".

    A row is of another kind (an evaluation, a summary) if it holds a value in a column that comes
    without a loss nearly always: its NaN are missing. So are those between losses that are logged
    every third row or less often. Long after the last loss neither holds: that run died. Every
    other NaN is NaN: it may have been an empty cell of a CSV file, but a NaN that is not reported
    is worse than one too many.
    """
    filled = {name: column.filled for name, column in cells.items()}
    with_loss = filled[loss]
    apart = [
        name
        for name, mask in filled.items()
        if np.count_nonzero(mask & with_loss) <= SELDOM * np.count_nonzero(mask)
    ]
    is_record = with_loss | cells[loss].present
    losses = np.flatnonzero(with_loss)
    if not cells[loss].can_be_missing and len(losses):
        for name in apart:
            is_record &= with_loss | ~filled[name]
        gaps = np.diff(np.flatnonzero(with_loss[is_record])) - 1
        if len(gaps) and np.count_nonzero(gaps >= 2) >= (1 - SELDOM) * len(gaps):
            is_record &= with_loss
        longest = int(np.max(np.diff(losses), initial=1)) - 1
        end = int(losses[-1]) + longest + 1
        if len(is_record) - end > LAST_ROWS:
            is_record[end:] = cells[loss].present[end:]
        padding = f"NaN{{s}} in {quoted(loss)} only to fill up a row {{is}} read as missing"
        table.note_counts({padding: int(np.count_nonzero(cells[loss].present & ~is_record))})
    for name, column in cells.items():
        if not column.can_be_missing:
            mask = filled[name]
            is_seldom = 2 * np.count_nonzero(mask & with_loss) < len(losses)
            is_thinned = is_seldom or (name != loss and _has_gaps(mask[is_record]))
            column.present = mask if is_thinned else mask | is_record


def _has_gaps(filled: BoolArray) -> bool:
    """Return whether there is a gap after every third value, or more of them."""
    gaps = np.diff(np.flatnonzero(filled)) > 1
    return len(gaps) > 0 and bool(3 * np.count_nonzero(gaps) >= len(gaps))


def _column_name(name: Any) -> str:
    """Return the name of a column as a log would have it; several levels with slashes between."""
    levels = name if isinstance(name, tuple) else (name,)
    return printable("/".join(str(level) for level in levels if str(level)))


def _arrow_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table of polars, of pyarrow, or of what speaks Arrow."""
    if has(table, "__arrow_c_stream__"):
        try:
            arrow = importlib.import_module("pyarrow").table(table)
        except ImportError:
            if not has(table, "columns", "__getitem__"):
                raise UnreadableLog(
                    "it needs pyarrow to be read; or give a dict of columns"
                ) from None
        else:
            names = unique_names([_column_name(name) for name in arrow.column_names])
            return dict(zip(names, arrow.columns, strict=True))
    names = table.column_names if has(table, "column_names") else table.columns
    return {_column_name(name): table[name] for name in names}


# Runs of W&B, MLflow and HF's Trainer, as their packages hand them over


def find_tracker(given: Any) -> TableSource | None:
    """Return the history of a tracker's run; None if it is none, UnreadableLog if it has none."""
    kind = type(given).__name__
    state = getattr(given, "__dict__", {}).get("state", given)
    if has(state, "log_history"):
        return history_source(f"log_history of {kind}", state.log_history)
    if has(given, "scan_history"):
        name = f"W&B run {given.name}"
        return TableSource(
            name=name,
            load=lambda wanted: records_table(given.scan_history(), wanted),
            format="wandb",
        )
    if has(given, "sync_dir", "log", "finish"):
        raise UnreadableLog(
            "a W&B run that is being logged to cannot be asked for its history; call finish(), "
            f"then give its folder: {given.sync_dir}"
        )
    if has(given, "info", "data") and has(given.info, "run_id") and has(given.data, "metrics"):
        name = f"MLflow run {given.info.run_id}"
        return TableSource(name=name, load=lambda wanted: _from_mlflow(given), format="mlflow")
    return None


def _from_mlflow(run: Any) -> Table:
    """Ask the tracking server for every value of a run: the object holds the last ones only."""
    try:
        client = importlib.import_module("mlflow").MlflowClient()
    except ImportError:
        raise UnreadableLog(
            "it holds only the last value of each metric, and mlflow, which fetches the others, is "
            "not installed; give mlflow.db or the folder mlruns"
        ) from None
    # The object is as old as the moment it was fetched: of an active run, it has no metrics at all.
    name = run.info.run_id
    metrics: Iterable[str] = client.get_run(name).data.metrics
    values = [value for metric in metrics for value in client.get_metric_history(name, metric)]
    points = Points()
    for value in sorted(values, key=lambda value: value.timestamp):
        # MLflow's database writes the infinities as the largest numbers.
        is_infinite = abs(value.value) >= sys.float_info.max
        number = math.copysign(math.inf, value.value) if is_infinite else float(value.value)
        points.add(value.key, int(value.step), number, value.timestamp / 1000)
    if not len(points):
        raise UnreadableLog("it has no metrics; check that the run logged anything")
    return points.to_table()
