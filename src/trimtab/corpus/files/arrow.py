"""Parquet files, and the Arrow files of HF datasets. Decoding is left to pyarrow, an extra."""

import importlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.errors import CorpusError, MissingExtra
from trimtab.corpus.files.rows import RowEncoder, Rows

_BATCH_ROWS = 1024

_UNPACKED_PER_BYTE = 256
_FREE_UNPACKED = 2**28
"""A row group that claims to be more than this many times its file is refused: it would fill the
memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFile:
    """A Parquet file; a unit of work is a row group."""

    path: Path
    kind: str = "parquet"

    def units(self) -> list[tuple[int, int, int]]:
        """One for each row group, with its compressed bytes."""
        with _readable(self.path), self.path.open("rb") as source:
            metadata = _module("pyarrow.parquet").ParquetFile(source).metadata
            size = self.path.stat().st_size
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            largest = max((group.total_byte_size for group in groups), default=0)
        if largest > _UNPACKED_PER_BYTE * size + _FREE_UNPACKED:
            raise CorpusError(f"{self.path} has a row group of {largest} bytes in {size}: refused")
        share = max(size // max(len(groups), 1), 1)
        return [(i, i + 1, share) for i in range(len(groups)) if groups[i].num_rows]

    def rows(self, first: int, last: int, encoder: RowEncoder) -> Iterator[Rows]:
        """The rows of some row groups."""
        with _readable(self.path), self.path.open("rb") as source:
            file = _module("pyarrow.parquet").ParquetFile(source)
            column = encoder.column(file.schema_arrow.names)
            columns = [column, *encoder.source_columns(file.schema_arrow.names)]
            place = sum(file.metadata.row_group(i).num_rows for i in range(first))
            for batch in file.iter_batches(
                batch_size=_BATCH_ROWS, row_groups=range(first, last), columns=columns
            ):
                yield _encode(batch, place, column, encoder)
                place += len(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowFile:
    """An Arrow stream, as HF datasets write it; it has no index, so it is one unit of work."""

    path: Path
    kind: str = "arrow"

    def units(self) -> list[tuple[int, int, int]]:
        """The whole file."""
        return [(0, 1, max(self.path.stat().st_size, 1))]

    def rows(self, first: int, last: int, encoder: RowEncoder) -> Iterator[Rows]:
        """The rows of the file."""
        with _readable(self.path), _BoundedFile(self.path) as source:
            place = 0
            for batch in _module("pyarrow").ipc.open_stream(source):
                batch.validate(full=True)  # offsets of a damaged file lead anywhere
                column = encoder.column(batch.schema.names)
                encoder.source_columns(batch.schema.names)
                for start in range(0, len(batch), _BATCH_ROWS):
                    rows = batch.slice(start, _BATCH_ROWS)
                    yield _encode(rows, place, column, encoder)
                    place += len(rows)


class _BoundedFile(io.FileIO):
    """A file that is never asked for more bytes than it has.

    Python allocates what is asked for, and a damaged stream asks for gigabytes.
    """

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, at most all that are left."""
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left)) or b""


def _encode(batch: Any, place: int, column: str, encoder: RowEncoder) -> Rows:
    rows = Rows(places=list(range(place, place + len(batch))))
    source = encoder.options.source_column
    if source is not None:
        rows.sources = [None if s is None else str(s) for s in batch.column(source).to_pylist()]
    else:
        rows.sources = [None] * len(batch)
    values = batch.column(column)
    if hasattr(values, "flatten") and str(values.type).startswith(("list", "large_list")):
        # Without a Python object for each token.
        cuts = values.offsets.to_numpy()
        flat = values.values.to_numpy(zero_copy_only=False)
        is_null = values.is_null().to_pylist()
        ids = [None if n else flat[a:b] for n, a, b in zip(is_null, cuts, cuts[1:], strict=False)]
        encoder.encode(rows, ids)
    else:
        encoder.encode(rows, values.to_pylist())
    return rows


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            'Parquet and Arrow files need pyarrow; run: pip install "trimtab[corpus]"'
        ) from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of pyarrow on a damaged file as one of ours."""
    invalid = _module("pyarrow").ArrowException
    try:
        yield
    except MemoryError as error:  # a length in a damaged file
        raise CorpusError(f"{path} cannot be read: it claims more than fits in memory") from error
    except (invalid, OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
