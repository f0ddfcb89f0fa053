"""Open files with rows of text or token ids: JSON lines, Parquet, Arrow files of HF datasets."""

import importlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.core.errors import ConfigError, CorpusError, MissingExtra
from trimtab.corpus.counting import Tokens
from trimtab.corpus.options import ScanOptions

if TYPE_CHECKING:
    from tokenizers import Tokenizer


ID_COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
TEXT_COLUMNS = ("text", "content", "raw_content", "document")
"""The names that are tried if no column is given."""

UNIT_BYTES = 2**26
"""Bytes of a unit of work."""


@dataclass(slots=True, kw_only=True)
class EncodedRows:
    """A few thousand rows of a file."""

    places: list[int] = field(default_factory=list)
    """Row or byte of each in its file."""
    tokens: list[Tokens] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    """What is wrong with the text; empty if nothing is."""
    unreadable: int = 0
    """Rows that could not be read."""


class RowEncoder:
    """Turns the values of rows into arrays of token ids."""

    def __init__(self, path: Path, options: ScanOptions) -> None:
        self.path = path
        self.options = options
        self._tokenizer: Tokenizer | None = None

    def column(self, names: Sequence[str]) -> str:
        """Return the column to read."""
        if self.options.column is not None:
            if self.options.column not in names:
                raise ConfigError(f"{self.path} has no column {self.options.column!r}")
            return self.options.column
        for name in (*ID_COLUMNS, *TEXT_COLUMNS):
            if name in names:
                return name
        raise ConfigError(
            f"{self.path} has none of the columns {', '.join((*ID_COLUMNS, *TEXT_COLUMNS))}; "
            "name one with --column"
        )

    def source_columns(self, names: Sequence[str]) -> list[str]:
        """Return the column of sources, if one is given."""
        source = self.options.source_column
        if source is not None and source not in names:
            raise ConfigError(f"{self.path} has no column {source!r}")
        return [] if source is None else [source]

    def encode(self, rows: EncodedRows, values: Sequence[Any]) -> None:
        """Fill in the tokens of rows whose places and sources are known, dropping the others."""
        texts = [at for at, value in enumerate(values) if isinstance(value, str)]
        encoded: dict[int, Tokens] = {}
        if texts:
            tokenizer = self._load_tokenizer()
            # A lone surrogate is damage that no tokenizer accepts.
            cleaned = [values[at].encode("utf-8", "replace").decode() for at in texts]
            for at, encoding in zip(texts, tokenizer.encode_batch_fast(cleaned), strict=True):
                encoded[at] = np.array(encoding.ids, dtype=np.uint32)
        places, sources = rows.places, rows.sources
        rows.places, rows.sources = [], []
        for at, value in enumerate(values):
            tokens = encoded[at] if at in encoded else _as_ids(value)
            if tokens is None:
                rows.unreadable += 1
                continue
            rows.places.append(places[at])
            rows.sources.append(sources[at])
            rows.tokens.append(tokens)
            rows.damage.append(damage_in(value) if isinstance(value, str) else "")

    def _load_tokenizer(self) -> "Tokenizer":
        if self._tokenizer is None:
            if self.options.tokenizer is None:
                raise ConfigError(f"{self.path} holds text; give a tokenizer.json with --tokenizer")
            self._tokenizer = load_tokenizer(self.options.tokenizer)
        return self._tokenizer


def load_tokenizer(path: Path) -> "Tokenizer":
    """Load a `tokenizer.json`, which is data and no code."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise MissingExtra.of("text needs tokenizers", "corpus") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise CorpusError(f"{path} is not a tokenizer.json: {error}") from error


def _as_ids(value: Any) -> Tokens | None:
    """Return a list of token ids as an array; None if it is something else."""
    try:
        ids = np.asarray(value)
    except ValueError:
        return None
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
        return None
    # One type for all formats: equal documents have equal hashes.
    if ids.dtype.kind == "i" and len(ids) and ids.min() < 0:
        return ids.astype(np.int64)
    if len(ids) and ids.max() >= 2**32:
        return ids.astype(np.int64)
    return ids.astype(np.uint32)


_MAX_LINE = 2**26
"""Bytes of a line; a longer one is counted as unreadable and skipped."""

_BATCH_ROWS = 256
_BATCH_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFile:
    """A unit of work has the lines that begin in a range of bytes."""

    path: Path
    kind: str = "jsonl"

    def units(self) -> list[tuple[int, int, int]]:
        size = self.path.stat().st_size
        cuts = [*range(0, size, UNIT_BYTES), size]
        return [(a, b, b - a) for a, b in pairwise(cuts) if b > a]

    def rows(self, first: int, last: int, encoder: RowEncoder) -> Iterator[EncodedRows]:
        """Yield the rows that begin in a range of bytes."""
        rows, values, size = EncodedRows(), [], 0
        column: str | None = None
        for place, line in self._lines(first, last):
            row = _parse(line)
            if row is None:
                rows.unreadable += bool(line is None or line.strip())
                continue
            if column is None:
                column = encoder.column(list(row))
            source = row.get(encoder.options.source_column or "")
            rows.places.append(place)
            rows.sources.append(source if isinstance(source, str) else None)
            values.append(row.get(column))
            size += len(line or b"")
            if len(values) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                encoder.encode(rows, values)
                yield rows
                rows, values, size = EncodedRows(), [], 0
        encoder.encode(rows, values)
        yield rows

    def _lines(self, first: int, last: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield each line with its place; None for one that is too long."""
        with self.path.open("rb") as file:
            if first:
                # The line that the range begins in belongs to the range before.
                file.seek(first - 1)
                while not file.readline(_MAX_LINE).endswith(b"\n"):
                    if file.tell() >= last:
                        return
            while (place := file.tell()) < last:
                line = file.readline(_MAX_LINE)
                if not line:
                    return
                if len(line) < _MAX_LINE or line.endswith(b"\n"):
                    yield place, line
                    continue
                yield place, None
                while line and not line.endswith(b"\n"):
                    line = file.readline(_MAX_LINE)


def _parse(line: bytes | None) -> dict[str, Any] | None:
    """Parse the object in a line; bytes that are not UTF-8 become replacement characters."""
    if line is None:
        return None
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


_ARROW_BATCH_ROWS = 1024

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
        """Return one unit per row group, with its compressed bytes."""
        with _readable(self.path), self.path.open("rb") as source:
            metadata = _module("pyarrow.parquet").ParquetFile(source).metadata
            size = self.path.stat().st_size
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            largest = max((group.total_byte_size for group in groups), default=0)
        if largest > _UNPACKED_PER_BYTE * size + _FREE_UNPACKED:
            raise CorpusError(f"{self.path} has a row group of {largest} bytes in {size}: refused")
        share = max(size // max(len(groups), 1), 1)
        return [(i, i + 1, share) for i in range(len(groups)) if groups[i].num_rows]

    def rows(self, first: int, last: int, encoder: RowEncoder) -> Iterator[EncodedRows]:
        """Yield the rows of some row groups."""
        with _readable(self.path), self.path.open("rb") as source:
            file = _module("pyarrow.parquet").ParquetFile(source)
            column = encoder.column(file.schema_arrow.names)
            columns = [column, *encoder.source_columns(file.schema_arrow.names)]
            place = sum(file.metadata.row_group(i).num_rows for i in range(first))
            for batch in file.iter_batches(
                batch_size=_ARROW_BATCH_ROWS, row_groups=range(first, last), columns=columns
            ):
                yield _encode(batch, place, column, encoder)
                place += len(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowFile:
    """An Arrow stream, as HF datasets write it; it has no index, so it is one unit of work."""

    path: Path
    kind: str = "arrow"

    def units(self) -> list[tuple[int, int, int]]:
        return [(0, 1, max(self.path.stat().st_size, 1))]

    def rows(self, first: int, last: int, encoder: RowEncoder) -> Iterator[EncodedRows]:
        """Yield the rows of the file."""
        with _readable(self.path), _BoundedFile(self.path) as source:
            place = 0
            for batch in _module("pyarrow").ipc.open_stream(source):
                batch.validate(full=True)  # offsets of a damaged file lead anywhere
                column = encoder.column(batch.schema.names)
                encoder.source_columns(batch.schema.names)
                for start in range(0, len(batch), _ARROW_BATCH_ROWS):
                    rows = batch.slice(start, _ARROW_BATCH_ROWS)
                    yield _encode(rows, place, column, encoder)
                    place += len(rows)


class _BoundedFile(io.FileIO):
    """A file that is never asked for more bytes than it has.

    Python allocates what is asked for, and a damaged stream asks for gigabytes.
    """

    def read(self, size: int | None = -1) -> bytes:
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left)) or b""


def _encode(batch: Any, place: int, column: str, encoder: RowEncoder) -> EncodedRows:
    rows = EncodedRows(places=list(range(place, place + len(batch))))
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
        raise MissingExtra.of("Parquet and Arrow files need pyarrow", "corpus") from error


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


# Encoding damage: text that was decoded wrongly before it reached the corpus

_SIGNS: Mapping[str, re.Pattern[str]] = {
    "replacement characters": re.compile("\ufffd"),
    # UTF-8 read as Latin-1 or Windows-1252: "é" becomes "Ã©", a curly quote "â€™".
    "UTF-8 read as Latin-1": re.compile(
        "[\u00c3\u00c2][\u0080-\u00bf]|\u00e2\u20ac|\u00ef\u00bb\u00bf"
    ),
    "control characters": re.compile("[\x00-\x08\x0e-\x1f\x7f\x80-\x9f]"),
    "lone surrogates": re.compile("[\ud800-\udfff]"),
}
"""What each kind looks like."""


def damage_in(text: str) -> str:
    """Return the kinds of damage in a text, separated by commas; empty if it has none."""
    return ", ".join(kind for kind, sign in _SIGNS.items() if sign.search(text))


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the characters that byte-level vocabularies write for bytes (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in shown}
    hidden = [byte for byte in range(256) if byte not in shown]
    return table | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def damaged_tokens(vocabulary: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the ids of a vocabulary that stand for damaged text, by kind.

    Part of a character is no damage: a byte-level token may end in the middle of one.
    """
    found: dict[str, list[int]] = {}
    for token, id in vocabulary.items():
        text = _text_of(token)
        for kind in filter(None, damage_in(text).split(", ")):
            found.setdefault(kind, []).append(id)
    return {kind: sorted(ids) for kind, ids in sorted(found.items())}


def _text_of(token: str) -> str:
    """Return the text of a token of a byte-level vocabulary, or the token itself."""
    table = _byte_alphabet()
    if len(token) < 2 or not all(char in table for char in token):
        return token if len(token) > 1 else ""
    data = bytes(table[char] for char in token)
    return data.decode("utf-8", "ignore")
