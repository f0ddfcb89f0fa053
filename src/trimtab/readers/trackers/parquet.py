"""Parquet files with a column for each metric, as trackio, pandas and polars write them.

Decoding is left to pyarrow, an extra; what it is handed is checked before.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import BoolArray
from trimtab.core.errors import MissingExtra, UnreadableLog
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.table import MAX_COLUMNS, Table, Wanted
from trimtab.readers.trackers import conventions

_MARK = b"PAR1"

ROWS_PER_BYTE = 8
UNPACKED_PER_BYTE = 256
"""A file that claims more for each of its bytes is a trap: what is logged differs from row to
row, and takes some bytes for each."""

_FREE_ROWS = 1 << 20
_FREE_UNPACKED = 1 << 28
_BATCH_ROWS = 1 << 16
_NUMERIC = ("int", "uint", "float", "double", "halffloat", "decimal")
_RUN_COLUMNS = ("run_id", "run_name")
"""Of trackio: which run a row is of."""


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    """Read the file; of several runs that trackio exported, the wanted or the newest one."""
    with _opened(path) as file:
        table = Table()
        runs, owners = _runs(file)
        chosen = conventions.choose_run(path, runs, wanted.run)
        mine = np.array([owner == chosen.id for owner in owners], dtype=np.bool_)
        fields = file.schema_arrow
        numeric = [field.name for field in fields if str(field.type).startswith(_NUMERIC)]
        for name in fields.names[:MAX_COLUMNS]:
            # A column of words is known to exist, so that a message can name it.
            table.add(name, table.new_rows(0), ())
        done = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=numeric[:MAX_COLUMNS]):
            rows = mine[done : done + len(batch)] if len(mine) else np.ones(len(batch), np.bool_)
            _add(table, batch, rows, {"step": conventions.CALL_STEP} if len(mine) else {})
            done += len(batch)
            progress(done, file.metadata.num_rows)
    if not table.num_rows:
        raise UnreadableLog(f"{path} holds no rows; check that the run logged anything")
    conventions.note_choice(table, chosen, runs)
    conventions.prefer_steps_beside_loss(table)
    conventions.restore_if_hf(table, conventions.HF_PREFIX)
    return table


def _add(table: Table, batch: Any, rows: BoolArray, renamed: Mapping[str, str]) -> None:
    index = table.new_rows(int(np.count_nonzero(rows)))
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)[rows]
        present = column.is_valid().to_numpy(zero_copy_only=False)[rows]
        table.add(renamed.get(name, name), index[present], values[present])


def _runs(file: Any) -> tuple[list[conventions.StoredRun], list[str]]:
    """Return the runs, the one with the last row first, and the run of each row."""
    names = [name for name in _RUN_COLUMNS if name in file.schema_arrow.names]
    if not names:
        return [conventions.StoredRun(id="", name="")], []
    owners: list[str] = []
    found: dict[str, str] = {}
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names):
        columns = batch.to_pydict()
        for run, name in zip(columns[names[0]], columns[names[-1]], strict=True):
            owners.append(str(run))
            found.pop(str(run), None)
            found[str(run)] = str(name)
    return [conventions.StoredRun(id=run, name=found[run]) for run in reversed(found)], owners


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file with pyarrow; raises UnreadableLog for whatever it says against it."""
    _check_marks(path)
    try:
        arrow, parquet = (importlib.import_module(f"pyarrow.{name}") for name in ("lib", "parquet"))
    except ImportError as error:
        raise MissingExtra.of(
            f"{path} is a Parquet file, which needs pyarrow", "parquet"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_claims(path, file.metadata)
            yield file
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise UnreadableLog(
            f"{path} cannot be read as Parquet: {error}; write it again, or give a different format"
        ) from error


def _check_marks(path: Path) -> None:
    with path.open("rb") as file:
        first = file.read(len(_MARK))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(len(_MARK), size - len(_MARK)))
        last = file.read()
    if first != _MARK:
        raise UnreadableLog(f"{path} is not a Parquet file: it does not begin with {_MARK!r}")
    if last != _MARK:
        raise UnreadableLog(
            f"{path} is cut off: a Parquet file keeps its index at the end, without which nothing "
            "in it can be found; look for a file that was closed"
        )


def _check_claims(path: Path, metadata: Any) -> None:
    """Refuse a file that would unpack to far more than it is."""
    size = path.stat().st_size
    unpacked = sum(
        metadata.row_group(position).total_byte_size for position in range(metadata.num_row_groups)
    )
    if metadata.num_rows > max(_FREE_ROWS, ROWS_PER_BYTE * size) or unpacked > max(
        _FREE_UNPACKED, UNPACKED_PER_BYTE * size
    ):
        raise UnreadableLog(
            f"{path} has {size} bytes and claims {metadata.num_rows} rows and {unpacked} bytes "
            "unpacked, which no log does; give the log that it was made from"
        )


PARQUET = Format(
    name="parquet",
    description="Parquet with a column for each metric",
    suffixes=(".parquet",),
    matches=lambda head: head.startswith(_MARK),
    load=_read,
    binary=True,
    logs_among=lambda files: newest_first([f for f in files if f.suffix == ".parquet"]),
    has_runs=True,
)
