"""ScanPlan: which part of which file belongs to which shard.

Files are cut into units of work at fixed places, and a shard is a row of units. What a unit counts
does not depend on the other units, so any number of shards gives the same result.
"""

import dataclasses
import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from trimtab._version import __version__
from trimtab.core.errors import ConfigError
from trimtab.corpus.options import ScanOptions
from trimtab.corpus.token_files import find_files, open_file

SHARD_BYTES = 2**28
"""Bytes of a shard, if their number is not given: a few seconds, which a kill may cost."""

MAX_SHARDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file as it was when the scan was planned."""

    path: str
    source: str
    kind: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of a file: tokens, row groups or bytes, from `first` to before `last`."""

    file: int
    first: int
    last: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class ScanPlan:
    """The files of a scan, cut into shards."""

    options: ScanOptions
    files: tuple[PlannedFile, ...]
    units: tuple[Unit, ...]
    num_shards: int

    @cached_property
    def digest(self) -> str:
        """Equal for equal plans: results of different plans are never added up.

        Files are known by name and size alone, because clocks of file systems differ.
        """
        options = dataclasses.asdict(self.options) | {"tokenizer": str(self.options.tokenizer)}
        facts = [
            [__version__, self.num_shards, options],
            [len(self.units), [dataclasses.astuple(file) for file in self.files]],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(unit.num_bytes for unit in self.units))

    def shard(self, index: int) -> tuple[Unit, ...]:
        if not 0 <= index < self.num_shards:
            raise ConfigError(f"shard must be 0 to {self.num_shards - 1}, got {index}")
        ends, total = self._ends, self._ends[-1]
        # Each unit belongs to the shard that its last byte is in.
        low, high = (
            bisect_left(ends, total * edge / self.num_shards + 0.5) for edge in (index, index + 1)
        )
        return self.units[low : len(self.units) if index == self.num_shards - 1 else high]


def plan_scan(
    paths: Iterable[Path], options: ScanOptions | None = None, *, num_shards: int | None = None
) -> ScanPlan:
    """Find the files, check their headers and cut them; the number of shards follows their size."""
    options = options or ScanOptions()
    files: list[PlannedFile] = []
    units: list[Unit] = []
    for index, (path, source) in enumerate(find_files(paths)):
        file = open_file(path, options)
        size = path.stat().st_size
        files.append(PlannedFile(path=str(path), source=source, kind=file.kind, size=size))
        units += [
            Unit(file=index, first=first, last=last, num_bytes=num_bytes)
            for first, last, num_bytes in file.units()
        ]
    if not units:
        raise ConfigError("the files are empty")
    if num_shards is None:
        wanted = sum(unit.num_bytes for unit in units) // SHARD_BYTES + 1
        num_shards = min(wanted, len(units), MAX_SHARDS)
    if num_shards < 1:
        raise ConfigError(f"the number of shards must be at least 1, got {num_shards}")
    return ScanPlan(options=options, files=tuple(files), units=tuple(units), num_shards=num_shards)
