"""Rows of text or token ids: what the formats with rows share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.core.errors import ConfigError, CorpusError, MissingExtra
from trimtab.corpus.kernel.counts import Tokens
from trimtab.corpus.options import ScanOptions
from trimtab.corpus.text_damage import damage_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ID_COLUMNS = ("input_ids", "tokens", "token_ids", "ids")
TEXT_COLUMNS = ("text", "content", "raw_content", "document")
"""The names that are tried if no column is given."""

UNIT_BYTES = 2**26
"""Bytes of a unit of work."""


@dataclass(slots=True, kw_only=True)
class Rows:
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
        """The column to read."""
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
        """The column of sources, if one is given."""
        source = self.options.source_column
        if source is not None and source not in names:
            raise ConfigError(f"{self.path} has no column {source!r}")
        return [] if source is None else [source]

    def encode(self, rows: Rows, values: Sequence[Any]) -> None:
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
        raise MissingExtra('text needs tokenizers; run: pip install "trimtab[corpus]"') from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise CorpusError(f"{path} is not a tokenizer.json: {error}") from error


def _as_ids(value: Any) -> Tokens | None:
    """A list of token ids as an array; None if it is something else."""
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
