"""Results of a scan: on disk, and what they mean.

The statistics of a scan or of a shard are one `.npz` file without pickle. It is written under a
draft name and renamed, so it is there as a whole or not at all. `Summary` says what the statistics
of a whole corpus mean.
"""

import dataclasses
import io
import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.errors import CorpusError
from trimtab.corpus.counting import Counts, add_counts
from trimtab.corpus.options import LONG_DOCUMENT, MAX_EXAMPLES, RARE
from trimtab.corpus.plan import PlannedFile
from trimtab.corpus.spread import Ids
from trimtab.corpus.statistics import (
    LENGTH_BINS,
    SCALARS,
    DocumentTable,
    SourceStatistics,
    Statistics,
)
from trimtab.journal.files import replace_file

_FORMAT = 1
_COLUMNS = ("hashes", "counts", "lengths", "files", "places")

RESULT = "corpus.npz"
"""The merged result in the folder of a scan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What was found, and in which shards of which plan."""

    digest: str
    """The plan."""
    num_shards: int
    shards: tuple[int, ...]
    """The shards that are in it."""
    files: tuple[PlannedFile, ...]
    vocab_size: int | None
    counts_only: bool
    statistics: Statistics


def save_result(result: ScanResult, path: Path) -> None:
    """Write a result; the same result gives the same bytes."""
    replace_file(path, result_bytes(result))


def result_bytes(result: ScanResult) -> bytes:
    """Encode a result as the content of its file."""
    found = result.statistics
    # Sorted, so that the bytes do not depend on which shard came first.
    names = sorted(found.sources)
    facts = {
        "format": _FORMAT,
        "digest": result.digest,
        "num_shards": result.num_shards,
        "shards": result.shards,
        "files": [dataclasses.asdict(file) for file in result.files],
        "vocab_size": result.vocab_size,
        "counts_only": result.counts_only,
        "level": found.table.level,
        "sources": [
            {"name": name} | {scalar: getattr(found.sources[name], scalar) for scalar in SCALARS}
            for name in names
        ],
        "runs": found.runs,
        "longest": found.longest,
        "damaged": found.damaged,
    }
    arrays: dict[str, Any] = {
        "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        "document_lengths": found.lengths,
    }
    for at, name in enumerate(names):
        arrays[f"tokens_{at}"] = found.sources[name].counts
    for name, column in zip(_COLUMNS, found.table.columns, strict=True):
        arrays[f"documents_{name}"] = column
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def load_result(path: Path) -> ScanResult:
    """Read a result; raises CorpusError if it is damaged or not one."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Stored, not packed: no entry is larger than the file.
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is packed")
        with np.load(path, allow_pickle=False, max_header_size=10_000) as arrays:
            return _from_arrays(arrays)
    except Exception as error:  # numpy and zipfile raise errors of every kind on damaged files
        raise CorpusError(
            f"{path} is not a readable result of a scan: {error}; give the --out folder of the scan"
        ) from error


def _from_arrays(arrays: Any) -> ScanResult:
    facts = json.loads(arrays["facts"].tobytes())
    if facts["format"] != _FORMAT:
        raise ValueError(f"format {facts['format']} is not known; scan again")
    sources = {}
    for at, source in enumerate(facts["sources"]):
        numbers = {scalar: int(source[scalar]) for scalar in SCALARS}
        counts = _integers(arrays[f"tokens_{at}"])
        sources[str(source["name"])] = SourceStatistics(counts=counts, **numbers)
    hashes, *columns = (arrays[f"documents_{name}"] for name in _COLUMNS)
    if any(column.shape != hashes.shape for column in columns) or hashes.dtype != np.uint64:
        raise ValueError("its columns of documents differ in length")
    counts, lengths, files, places = map(_integers, columns)
    histogram = _integers(arrays["document_lengths"])
    if len(histogram) != LENGTH_BINS:
        raise ValueError("it has another number of lengths")
    found = Statistics(
        sources=sources,
        lengths=histogram,
        table=DocumentTable((hashes, counts, lengths, files, places), int(facts["level"])),
        runs=[(int(file), int(at), int(period)) for file, at, period in facts["runs"]],
        longest=[(int(file), int(at), int(length)) for file, at, length in facts["longest"]],
        damaged=[(int(file), int(at), str(what)) for file, at, what in facts["damaged"]],
    )
    vocab_size = facts["vocab_size"]
    return ScanResult(
        digest=str(facts["digest"]),
        num_shards=int(facts["num_shards"]),
        shards=tuple(int(shard) for shard in facts["shards"]),
        files=tuple(PlannedFile(**file) for file in facts["files"]),
        vocab_size=None if vocab_size is None else int(vocab_size),
        counts_only=bool(facts["counts_only"]),
        statistics=found,
    )


def _integers(array: Any) -> Any:
    if array.dtype != np.int64 or array.ndim != 1:
        raise ValueError(f"an array of {array.dtype} where int64 is expected")
    return array


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a whole scan, summed up: rare tokens, repeats, duplicates, damage."""

    result: ScanResult
    below: int = RARE
    """A token with fewer occurrences is rare."""

    @cached_property
    def counts(self) -> Counts:
        """Occurrences of each token, as long as the vocabulary if that is known."""
        total: Counts = np.zeros(self.result.vocab_size or 0, dtype=np.int64)
        for source in self.result.statistics.sources.values():
            total = add_counts(total, source.counts)
        return total

    @cached_property
    def rare(self) -> Ids:
        """Tokens that occur, but fewer times than `below`."""
        return np.flatnonzero((self.counts > 0) & (self.counts < self.below))

    @cached_property
    def never(self) -> Ids:
        """Tokens of the vocabulary that never occur; without its size, those below the largest."""
        return np.flatnonzero(self.counts == 0)

    def total(self, name: str) -> int:
        """Sum a statistic over all sources."""
        sources = self.result.statistics.sources.values()
        return sum(int(getattr(source, name)) for source in sources)

    @property
    def has_findings(self) -> bool:
        """Whether anything should be removed or repaired; rare tokens alone are no fault."""
        names = ("out_of_range", "repeated_runs", "damaged_documents", "unreadable_rows")
        found = any(self.total(name) for name in (*names, "long_documents"))
        return found or self.result.statistics.table.duplicates > 0

    def place(self, file: int, at: int) -> str:
        files = self.result.files
        return f"{files[file].path}:{at}" if 0 <= file < len(files) else f"file {file}:{at}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        found = self.result.statistics
        return {
            "files": len(self.result.files),
            "bytes": sum(file.size for file in self.result.files),
            "tokens": self.total("tokens"),
            "vocab_size": self.result.vocab_size,
            **{name: self.total(name) for name in SCALARS},
            "rare": {
                "below": self.below,
                "ids": self.rare.tolist(),
                "occurrences": int(self.counts[self.rare].sum()),
            },
            "never": self.never.tolist(),
            "sources": {name: self._source(name) for name in sorted(found.sources)},
            "duplicates": {
                "documents": found.table.duplicates,
                "tokens": found.table.duplicate_tokens,
                "kept_share": 0.5**found.table.level,
                "most_repeated": [
                    {"place": self.place(file, at), "length": length, "count": count}
                    for file, at, length, count in found.table.most_repeated(MAX_EXAMPLES)
                ],
            },
            "repeats": [
                {"place": self.place(file, at), "period": period} for file, at, period in found.runs
            ],
            "longest": [
                {"place": self.place(file, at), "tokens": length}
                for file, at, length in found.longest
            ],
            "long_from": LONG_DOCUMENT,
            "damaged": [
                {"place": self.place(file, at), "what": what} for file, at, what in found.damaged
            ],
            "lengths": found.lengths.tolist(),
        }

    def _source(self, name: str) -> dict[str, Any]:
        source = self.result.statistics.sources[name]
        rare = self.rare[self.rare < len(source.counts)]
        numbers = {scalar: getattr(source, scalar) for scalar in SCALARS}
        return {
            "tokens": source.tokens,
            "distinct": int(np.count_nonzero(source.counts)),
            "rare_occurrences": int(source.counts[rare].sum()),
            **numbers,
        }


def load_summary(path: Path | str, below: int = RARE) -> Summary:
    """Load the summary of a scan from its folder or its result file."""
    path = Path(path)
    file = path / RESULT if path.is_dir() else path
    if not file.exists():
        raise CorpusError(f"{path} has no merged result; run `trimtab corpus merge` first")
    return Summary(result=load_result(file), below=below)
