"""Summary: what the statistics of a corpus mean."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.errors import CorpusError
from trimtab.corpus.counting import Counts, add_counts
from trimtab.corpus.options import LONG_DOCUMENT, MAX_EXAMPLES, RARE
from trimtab.corpus.scanning import RESULT
from trimtab.corpus.spread import Ids
from trimtab.corpus.statistics import SCALARS
from trimtab.corpus.storing import ScanResult, load_result


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
        """Format a place in a file."""
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
