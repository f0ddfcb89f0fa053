"""Parquet files with a column for each metric, as trackio, pandas and polars write them.

Decoding is left to pyarrow, an extra; what it is handed is checked before.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.core.errors import MissingExtra, UnreadableLog
from trimtab.readers.aliases import fold
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.runs import LABEL_COLUMNS
from trimtab.readers.table import MAX_COLUMNS, Table, Wanted
from trimtab.readers.trackers.conventions import CALL_STEP, correct_tracker

_MARK = b"PAR1"

ROWS_PER_BYTE = 8
UNPACKED_PER_BYTE = 256
"""A file that claims more for each of its bytes is a trap: what is logged differs from row to
row, and takes some bytes for each."""

_FREE_ROWS = 1 << 20
_FREE_UNPACKED = 1 << 28
_BATCH_ROWS = 1 << 16
_NUMERIC = ("int", "uint", "float", "double", "halffloat", "decimal")


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    """Read the file; of several runs that trackio exported, the wanted or the newest one."""
    with _opened(path) as file:
        table = Table()
        fields = file.schema_arrow
        numeric = [field.name for field in fields if str(field.type).startswith(_NUMERIC)]
        for name in fields.names[:MAX_COLUMNS]:
            # A column of words is known to exist, so that a message can name it.
            table.add(name, table.new_rows(0), ())
        labels = [name for name in fields.names if fold(name) in LABEL_COLUMNS]
        columns = list(dict.fromkeys([*numeric[:MAX_COLUMNS], *labels]))
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            index = table.new_rows(len(batch))
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if name in numeric:
                    values = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
                    present = column.is_valid().to_numpy(zero_copy_only=False)
                    table.add(name, index[present], values[present])
                else:
                    table.add(name, index, column.to_pylist())
            progress(table.num_rows, file.metadata.num_rows)
    if "run_name" in fields.names:  # of trackio, which counts calls
        table.rename("step", CALL_STEP)
    return table


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file with pyarrow; raises UnreadableLog for whatever it says against it."""
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
            f"{path} cannot be read as Parquet: {error}; if it is cut off, so is its index, which "
            "is at its end: look for a file that was closed"
        ) from error


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
    finish=correct_tracker,
    binary=True,
    logs_among=lambda files: newest_first([f for f in files if f.suffix == ".parquet"]),
)
