"""Scan one shard: read its units, count, and return the sums."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from trimtab.core.errors import CorpusError
from trimtab.corpus.counting import (
    CHUNK,
    CONTEXT,
    PIECE,
    DocumentReader,
    Run,
    TokenCounter,
    Tokens,
    add_counts,
    find_runs,
    repeated_tokens,
    trim,
)
from trimtab.corpus.options import MAX_DOCUMENT, MAX_EXAMPLES, ScanOptions
from trimtab.corpus.plan import PlannedFile, ScanPlan, Unit
from trimtab.corpus.row_files import RowEncoder, Rows
from trimtab.corpus.statistics import SourceStatistics, Statistics
from trimtab.corpus.token_files import FlatFile, FlatReader, TokenFile, open_file

OnBytes = Callable[[int], None]
"""Called with the bytes of each unit that is done."""


def scan_shard(plan: ScanPlan, index: int, on_bytes: OnBytes | None = None) -> Statistics:
    """The statistics of one shard."""
    found = Statistics()
    opened: tuple[int, TokenFile] | None = None
    for unit in plan.shard(index):
        planned = plan.files[unit.file]
        if opened is None or opened[0] != unit.file:
            _check_size(planned)
            opened = unit.file, open_file(Path(planned.path), plan.options)
        file = opened[1]
        if isinstance(file, FlatFile):
            _scan_flat(file, unit, planned.source, plan.options, found)
        else:
            encoder = RowEncoder(file.path, plan.options)
            for rows in file.rows(unit.first, unit.last, encoder):
                _scan_rows(rows, unit, planned.source, plan.options, found)
        if on_bytes is not None:
            on_bytes(unit.num_bytes)
    found.sort_examples()
    return found


def _check_size(planned: PlannedFile) -> None:
    """A file that changed since the scan was planned would be counted in part."""
    try:
        size = Path(planned.path).stat().st_size
    except OSError as error:
        raise CorpusError(f"{planned.path} cannot be read: {error}") from error
    if size != planned.size:
        raise CorpusError(f"{planned.path} had {planned.size} bytes and now has {size}; scan again")


def _scan_flat(
    file: FlatFile, unit: Unit, source: str, options: ScanOptions, found: Statistics
) -> None:
    counter = TokenCounter(options.limit)
    with file.opened() as reader:
        documents = _first_document(file, unit, reader) if _has_documents(file, options) else None
        context = 0 if options.counts_only else CONTEXT
        # Repeats need long stretches; what is only counted is best read into the cache.
        step = PIECE if options.counts_only else CHUNK
        for start in range(unit.first, unit.last, step):
            stop = min(start + step, unit.last)
            around = reader.read(start - context, stop + context)
            before = min(start, context)
            tokens = around[before : before + stop - start]
            counter.update(tokens)
            if not options.counts_only:
                for run in _count_repeats(around, before, stop - start, found.source(source)):
                    found.add_run(unit.file, start - before + run.start, run.period)
            if documents is not None:
                documents.update(tokens, start, file.document_ends(tokens, start))
        if documents is not None:
            _finish_document(file, unit, reader, documents)
            places, lengths, hashes = documents.pop()
            found.add_documents(source, unit.file, places, lengths)
            found.table.add(unit.file, places, lengths, hashes)
    _add_counts(found, source, counter)


def _has_documents(file: FlatFile, options: ScanOptions) -> bool:
    return file.has_documents and not options.counts_only


def _first_document(file: FlatFile, unit: Unit, reader: FlatReader) -> DocumentReader:
    """A document belongs to the unit in which it begins."""
    documents = DocumentReader(ends_with_separator=file.separator is not None)
    before = reader.read(unit.first - 1, unit.first)
    if unit.first == 0 or unit.first in file.document_ends(before, unit.first - len(before)):
        documents.begin(unit.first)
    return documents


def _finish_document(
    file: FlatFile, unit: Unit, reader: FlatReader, documents: DocumentReader
) -> None:
    """Read on to the end of the last document that begins in the unit."""
    if documents.start is None or documents.start >= unit.last:
        return
    start = unit.last
    while documents.is_open and start < min(file.size, unit.last + MAX_DOCUMENT):
        tokens = reader.read(start, start + CHUNK)
        ends = list(file.document_ends(tokens, start))[:1]
        if ends:
            tokens = tokens[: ends[0] - start]
        documents.update(tokens, start, ends)
        if ends:
            break  # the next document belongs to the next unit
        start += len(tokens)
    else:
        documents.close()


def _count_repeats(
    tokens: Tokens, first: int, length: int, statistics: SourceStatistics
) -> list[Run]:
    """Count the repeated phrases of a piece of these tokens; returns the first that begin in it."""
    runs = find_runs(tokens)
    if not runs:
        return []
    statistics.repeated_tokens += int(repeated_tokens(tokens, runs)[first : first + length].sum())
    # A run that began before the piece is one of the piece before.
    begun = [run for run in runs if first <= run.start < first + length]
    statistics.repeated_runs += len(begun)
    return begun[:MAX_EXAMPLES]


def _scan_rows(
    rows: Rows, unit: Unit, source: str, options: ScanOptions, found: Statistics
) -> None:
    found.source(source).unreadable_rows += rows.unreadable
    by_source: dict[str, list[int]] = {}
    for at, name in enumerate(rows.sources):
        by_source.setdefault(source if name is None else name, []).append(at)
    for name, chosen in by_source.items():
        together = np.concatenate([rows.tokens[at] for at in chosen])
        counter = TokenCounter(options.limit)
        counter.update(together)
        _add_counts(found, name, counter)
        if options.counts_only:
            continue
        # One look at all rows; only if it finds something, one at each.
        has_runs = bool(find_runs(together))
        documents = DocumentReader(ends_with_separator=False)
        for at in chosen:
            tokens = rows.tokens[at]
            documents.begin(rows.places[at])
            documents.update(tokens, 0, ())
            documents.close()
            if has_runs:
                for run in _count_repeats(tokens, 0, len(tokens), found.source(name)):
                    found.add_run(unit.file, rows.places[at], run.period)
            if rows.damage[at]:
                found.source(name).damaged_documents += 1
                found.add_damage(unit.file, rows.places[at], rows.damage[at])
        places, lengths, hashes = documents.pop()
        found.add_documents(name, unit.file, places, lengths)
        found.table.add(unit.file, places, lengths, hashes)


def _add_counts(found: Statistics, source: str, counter: TokenCounter) -> None:
    statistics = found.source(source)
    statistics.counts = trim(add_counts(statistics.counts, counter.counts))
    statistics.out_of_range += counter.out_of_range
