"""scan: all shards of a plan, here or in several processes; merge: their sum.

A shard that has its result file is not scanned again, and each shard is added up once. So a scan
that was killed is simply started again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from trimtab.core.errors import CorpusError
from trimtab.corpus.counting import (
    CHUNK,
    CONTEXT,
    PIECE,
    DocumentReader,
    PhraseRun,
    TokenCounter,
    Tokens,
    add_counts,
    find_phrase_runs,
    repeated_tokens,
    trim,
)
from trimtab.corpus.options import MAX_DOCUMENT, MAX_EXAMPLES, ScanOptions
from trimtab.corpus.plan import PlannedFile, ScanPlan, Unit
from trimtab.corpus.results import RESULT, ScanResult, load_result, save_result
from trimtab.corpus.row_files import EncodedRows, RowEncoder
from trimtab.corpus.statistics import SourceStatistics, Statistics
from trimtab.corpus.token_files import FlatFile, FlatReader, TokenFile, open_file


def scan_shard(plan: ScanPlan, index: int) -> Statistics:
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
    found.sort_examples()
    return found


def _check_size(planned: PlannedFile) -> None:
    """Raise CorpusError if a file has changed since the scan was planned."""
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
        has_documents = file.has_documents and not options.counts_only
        documents = _first_document(file, unit, reader) if has_documents else None
        context = 0 if options.counts_only else CONTEXT
        # Repeats need long stretches; what is only counted is best read into the cache.
        step = PIECE if options.counts_only else CHUNK
        for start in range(unit.first, unit.last, step):
            stop = min(start + step, unit.last)
            # With tokens on both sides: a phrase may cross the border of two chunks.
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
            found.add_documents(source, unit.file, *documents.pop())
    _add_counts(found, source, counter)


def _first_document(file: FlatFile, unit: Unit, reader: FlatReader) -> DocumentReader:
    """Start a document if one begins with the unit; a document belongs to where it begins."""
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
    # The file ended, or the document is longer than what is read of one.
    else:
        documents.close()


def _count_repeats(
    tokens: Tokens, first: int, length: int, statistics: SourceStatistics
) -> list[PhraseRun]:
    """Count the repeated phrases of a piece of these tokens; returns the first that begin in it."""
    runs = find_phrase_runs(tokens)
    if not runs:
        return []
    statistics.repeated_tokens += int(repeated_tokens(tokens, runs)[first : first + length].sum())
    # A run that began before the piece is one of the piece before.
    begun = [run for run in runs if first <= run.start < first + length]
    statistics.repeated_runs += len(begun)
    return begun[:MAX_EXAMPLES]


def _scan_rows(
    rows: EncodedRows, unit: Unit, source: str, options: ScanOptions, found: Statistics
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
        # Searched together first; row by row only if something is found.
        has_runs = bool(find_phrase_runs(together))
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
        found.add_documents(name, unit.file, *documents.pop())


def _add_counts(found: Statistics, source: str, counter: TokenCounter) -> None:
    statistics = found.source(source)
    statistics.counts = trim(add_counts(statistics.counts, counter.counts))
    statistics.out_of_range += counter.out_of_range


ShardStatistics = tuple[int, Statistics]
Runner = Callable[[ScanPlan, Sequence[int]], Iterable[ShardStatistics]]
"""Takes a plan and the shards to scan; yields each with its statistics, in any order."""

_WAITING = 2
"""Shards per worker that are handed out: one at work, one waiting. Results are kept in memory only
until they are written."""


def run_here(plan: ScanPlan, shards: Sequence[int]) -> Iterator[ShardStatistics]:
    """Scan one shard after the other in this process."""
    for index in shards:
        yield index, scan_shard(plan, index)


def run_processes(num_processes: int) -> Runner:
    """Return a runner with several processes on this machine."""

    def run(plan: ScanPlan, shards: Sequence[int]) -> Iterator[ShardStatistics]:
        # Spawned: a fork would copy the threads of whatever the caller has imported.
        with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
            left = iter(shards)
            running: dict[Future[Statistics], int] = {}
            while True:
                for index in islice(left, _WAITING * num_processes - len(running)):
                    running[pool.submit(scan_shard, plan, index)] = index
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()

    return run


OnShard = Callable[[int, int], None]
"""Called with the number of shards that are done, and of all shards."""


def scan(
    plan: ScanPlan, folder: Path, *, runner: Runner = run_here, on_shard: OnShard | None = None
) -> ScanResult:
    """Scan the shards that have no result yet, and merge all."""
    missing = [index for index in range(plan.num_shards) if not is_scanned(plan, index, folder)]
    done = plan.num_shards - len(missing)
    # Each shard is written as soon as it is there: a scan that is killed loses those at work only.
    for index, statistics in runner(plan, missing):
        _save_shard(plan, index, statistics, folder)
        done += 1
        if on_shard is not None:
            on_shard(done, plan.num_shards)
    result = merge(shard_file(folder, plan, index) for index in range(plan.num_shards))
    save_result(result, folder / RESULT)
    return result


def scan_one(plan: ScanPlan, index: int, folder: Path) -> bool:
    """Scan one shard of an array of jobs; False if its result is there already."""
    if is_scanned(plan, index, folder):
        return False
    _save_shard(plan, index, scan_shard(plan, index), folder)
    return True


def _save_shard(plan: ScanPlan, index: int, statistics: Statistics, folder: Path) -> None:
    result = ScanResult(
        digest=plan.digest,
        num_shards=plan.num_shards,
        shards=(index,),
        files=plan.files,
        vocab_size=plan.options.vocab_size,
        counts_only=plan.options.counts_only,
        statistics=statistics,
    )
    save_result(result, shard_file(folder, plan, index))


def shard_file(folder: Path, plan: ScanPlan, index: int) -> Path:
    return folder / f"shard-{index:05d}-of-{plan.num_shards:05d}.npz"


def is_scanned(plan: ScanPlan, index: int, folder: Path) -> bool:
    """Return whether a shard has a result of this plan; one of a different plan is an error."""
    path = shard_file(folder, plan, index)
    if not path.exists():
        return False
    try:
        result = load_result(path)
    except CorpusError:
        return False  # damaged by a disk: scan it again
    if result.digest != plan.digest:
        raise CorpusError(
            f"{path} is of other files or settings; choose an empty folder, or delete it"
        )
    return result.shards == (index,)


def merge_folder(folder: Path) -> ScanResult:
    """Merge the shards in a folder, and keep the result there."""
    files = sorted(folder.glob("shard-*-of-*.npz"))
    if not files:
        raise CorpusError(f"{folder} holds no shards; run `trimtab corpus scan` first")
    result = merge(files)
    save_result(result, folder / RESULT)
    return result


def merge(files: Iterable[Path]) -> ScanResult:
    """Add up the shards of one scan, each once; raises CorpusError if one is missing."""
    first: ScanResult | None = None
    seen: set[int] = set()
    total = Statistics()
    for file in files:
        result = load_result(file)
        first = first or result
        if result.digest != first.digest:
            raise CorpusError(f"{file} is of other files or settings than the shards before it")
        if seen & set(result.shards):
            raise CorpusError(f"{file} holds shards {result.shards}, which were added up before")
        seen |= set(result.shards)
        total.merge(result.statistics)
    if first is None or len(seen) != first.num_shards:
        have = 0 if first is None else first.num_shards
        missing = sorted(set(range(have)) - seen)
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise CorpusError(f"{len(missing)} of {have} shards are missing: {shown}; scan them first")
    total.sort_examples()
    return replace(first, shards=tuple(sorted(seen)), statistics=total)
