"""What a scan looks for, and where each threshold comes from."""

from dataclasses import dataclass
from pathlib import Path

from trimtab.core.errors import ConfigError

RARE = 10
"""A token with fewer occurrences is rare: its embedding is hardly trained, and a batch with several
of them can spike. Source: post-mortems of long-tail spikes."""

REPEATS = 32
MAX_PERIOD = 13
"""A phrase of up to 13 tokens that follows itself 32 times is degenerate. Source: the instance
filter of OLMo-core (`repetition_max_period`, `repetition_max_count`)."""

LONG_DOCUMENT = 2**17
"""Tokens from which on a document is long: the longest context that common open models are trained
with (Llama 3.1), so no run sees such a document whole."""

MAX_DOCUMENT = 2**20
"""Tokens of a document that are read: a longer one is compared by its beginning."""

MAX_VOCABULARY = 2**20
"""Ids from here on are out of range if no vocabulary is given. The largest public vocabularies have
262,144 tokens (Gemma 3); without a limit, one bad id would allocate gigabytes."""

MAX_SOURCES = 64
OTHER_SOURCES = "(other)"
"""Sources beyond the limit are counted together: a column may hold a different one in each row."""

MAX_EXAMPLES = 20
"""Places that are kept of each kind of finding."""

DTYPES = ("uint16", "uint32", "int32", "int64")
"""Token ids in raw files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """How to read the files and what to count."""

    dtype: str = "uint16"
    """Token ids in a raw `.bin` file, which does not say it itself. nanoGPT writes uint16."""
    separator: int | None = None
    """The token that ends a document in a flat file; None: such a file has no document
    statistics. GPT-2's is 50256."""
    vocab_size: int | None = None
    """Ids from here on are out of range; None is the largest that is accepted."""
    tokenizer: Path | None = None
    """`tokenizer.json`, for text."""
    column: str | None = None
    """The column of text or token ids; None is the first known name, such as `text`."""
    source_column: str | None = None
    """The column with a row's source; None: sources are folders and files."""
    counts_only: bool = False
    """Only count tokens: no repeats, no documents."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.vocab_size is not None and not 0 < self.vocab_size <= 2**24:
            raise ConfigError(f"vocab_size must be 1 to {2**24}, got {self.vocab_size}")
        if self.separator is not None and not 0 <= self.separator < self.limit:
            raise ConfigError(f"separator must be 0 to {self.limit - 1}, got {self.separator}")

    @property
    def limit(self) -> int:
        return MAX_VOCABULARY if self.vocab_size is None else self.vocab_size
