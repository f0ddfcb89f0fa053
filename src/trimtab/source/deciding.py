"""find_source: what the user handed over, by what it is.

    a path, or several           a log or a run directory; several are parts of one run
    text, bytes, a file object   what a file holds
    rows, columns, losses        a table in memory
    a run of a tracker           its history

Anything else is refused with its type and with what would be read. An object that merely answers to
every name, as a mock does, is none of these.
"""

import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isroutine
from pathlib import Path
from typing import Any

from trimtab.core.block import Block
from trimtab.core.errors import (
    ConfigError,
    LogError,
    MissingExtra,
    NoUsableLoss,
    TrimtabError,
    UnreadableLog,
)
from trimtab.core.plugins import describe_error
from trimtab.core.run import Reader, Run
from trimtab.core.signals import LOSS
from trimtab.core.text import printable
from trimtab.journal import RunDirectory, read_journal
from trimtab.readers import read_log
from trimtab.readers.cells import quoted
from trimtab.readers.runs import separate
from trimtab.readers.table import Wanted, to_run
from trimtab.readers.trackers.conventions import correct_tracker, has_hf_names, name_summary
from trimtab.source.cells import described, has
from trimtab.source.tables import TableSource, find_table, find_tracker

Progress = Callable[[str, int, int], None]
"""Called with what is being done ("Reading", "Judging", "Explaining"), how much is done, and how
much there is."""

_PASTED = "pasted text"

_READABLE = (
    "give a path, pasted text, a file object, a frame, a dict of columns, a list of dicts, or the "
    "losses as a list or an array"
)
_RECORD = re.compile(r"[A-Za-z_]\W{0,8}[\s=:]\W{0,8}\d")
"""A name beside a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is known about a log before it is read; None leaves it open."""

    format: str | None = None
    readers: Sequence[Reader] = ()
    progress: Progress | None = None
    wanted: Wanted = field(default_factory=Wanted)
    """Names in the log: of the run, of the loss and of the step."""

    @property
    def are_for_logs(self) -> bool:
        """Whether a part of them says how a log is to be read."""
        return self.format is not None or self.wanted != Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the user handed over."""

    name: str
    """What reports call it: a path as it was given, "DataFrame", "list of 400 losses"."""
    load: Callable[[ReadOptions], Run]

    def read(self, options: ReadOptions) -> Run:
        """Return the run in it; raises LogError or JournalError if there is no loss to judge."""
        run = self.load(options)
        if not len(run.block):
            is_live = run.format == "journal"
            hint = "call guard.record" if is_live else "check that anything was logged"
            before = " before each optimizer.step()" if is_live else ""
            raise NoUsableLoss(f"{self.name} holds no step; {hint}{before}")
        if not run.block.column(LOSS).recorded:
            raise NoUsableLoss(f"{self.name} holds {len(run.block)} records, but no loss")
        return run


def read_run(given: Any) -> Run:
    """Read whatever `trimtab.diagnose` takes; raises LogError or JournalError if it has no loss."""
    return find_source(given).read(ReadOptions())


def find_source(given: Any) -> Source:
    """Decide what was handed over; raises UnreadableLog, with its type, if it cannot be a log."""
    try:
        return _find_source(given)
    except TrimtabError:
        raise
    except Exception as error:  # of the object itself
        raise UnreadableLog(
            f"{described(given)} cannot be read: {describe_error(error)}"
        ) from error


def _find_source(given: Any) -> Source:
    if isinstance(given, type):
        raise _refusal(given)
    if isinstance(given, str):
        return _find_text(given)
    if isinstance(given, bytes | bytearray | memoryview):
        return _pasted(bytes(given))
    if isinstance(given, os.PathLike):
        return _path(Path(os.fsdecode(given)))
    if isinstance(given, Run):
        name = type(given).__name__ if given.path is None else str(given.path)
        return Source(name=name, load=partial(_already_read, given))
    if isinstance(given, Block):
        return Source(name="Block", load=partial(_already_read, Run(block=given, format="block")))
    if isinstance(given, RunDirectory):
        return _path(given.root)
    if has(given, "run_dir"):
        return _watched(given)
    table = find_tracker(given) or find_table(given)
    if table is not None:
        return Source(name=printable(table.name), load=partial(_read_table, table))
    if isinstance(given, list | tuple) and given:
        return _parts([find_source(part) for part in given])
    if _is_file(given):
        return _file(given)
    raise _refusal(given)


# Paths


def _path(path: Path) -> Source:
    return Source(name=str(path), load=partial(_read_path, path))


def _read_path(path: Path, options: ReadOptions) -> Run:
    reading = None if options.progress is None else partial(options.progress, "Reading")
    is_log = options.are_for_logs or "\0" in str(path)
    directory = None if is_log else RunDirectory.find(path)
    if directory:
        return read_journal(directory, progress=reading)
    return read_log(
        path,
        format=options.format,
        readers=options.readers,
        progress=reading,
        loss=options.wanted.loss,
        step=options.wanted.step,
        run=options.wanted.run,
    )


def _watched(guard: Any) -> Source:
    if not isinstance(guard.run_dir, str | os.PathLike):
        raise UnreadableLog(
            f"{described(guard)} records nothing here; give the guard of rank 0, or the run_dir"
        )
    return _path(Path(guard.run_dir))


def _parts(parts: Sequence[Source]) -> Source:
    if len(parts) == 1:
        return parts[0]

    def load(options: ReadOptions) -> Run:
        return _join([(part.name, part.read(options)) for part in parts])

    return Source(name=", ".join(part.name for part in parts), load=load)


def _join(parts: Sequence[tuple[str, Run]]) -> Run:
    """Return the parts of a run, in their order, as one; a step that goes back is a restart."""
    blocks: list[Block] = []
    notes: list[str] = []
    attempt = 0
    last: int | None = None
    for name, part in parts:
        block = part.block
        attempt += int(last is not None and block.step[0] <= last)
        tick = block.tick - block.tick[0] + (blocks[-1].tick[-1] + 1 if blocks else 0)
        blocks.append(dataclasses.replace(block, tick=tick, attempt=block.attempt + attempt))
        attempt, last = int(blocks[-1].attempt[-1]), int(block.step[-1])
        notes += [f"{part.path or name}: {note}" for note in part.notes]
    _, first = parts[0]
    return dataclasses.replace(first, block=Block.concat(blocks), path=None, notes=tuple(notes))


# Text and files


def _find_text(text: str) -> Source:
    """Return what a str is: text if it has a line end or is JSON, else a path."""
    if not text.strip():
        raise UnreadableLog(f"an empty str is no log; {_READABLE}")
    if "\n" in text or "\r" in text:
        return _pasted(text.encode("utf-8", "replace"))
    try:
        is_there = Path(text).exists() or Path(text.partition("#")[0]).exists()
        is_path = is_there or "://" in text or not ("\0" in text or _RECORD.search(text))
    except OSError:  # too long for a path
        is_there = is_path = False
    if not is_there and text.lstrip().startswith(("{", "[")):
        return _pasted(text.encode("utf-8", "replace"))
    if not is_path:
        raise UnreadableLog(
            f"{quoted(text)} is taken for a path, because it has no line end, and there is no such "
            "file; for a text, give all of its lines with '\\n' between them"
        )
    return _path(Path(text))


def _pasted(text: bytes) -> Source:
    def load(options: ReadOptions) -> Run:
        with _hints_for_python():
            run = _read_copy([text], _PASTED, lambda file: _read_path(file, options))
        return dataclasses.replace(run, notes=tuple(map(_for_python, run.notes)))

    return Source(name=_PASTED, load=load)


def _file(file: Any) -> Source:
    name = printable(_file_name(file))

    def load(options: ReadOptions) -> Run:
        return _read_copy(_file_blocks(file, name), name, lambda copy: _read_path(copy, options))

    return Source(name=name, load=load)


def _is_file(given: Any) -> bool:
    """Return whether it can be read from; some wrappers of files delegate, mocks answer a mock."""
    try:
        return isroutine(getattr(given, "read", None))
    except Exception:
        return False


# Text and file objects are copied into a file, which is read like any log

_BLOCK_BYTES = 1 << 16
_SUFFIX_CHARS = 16
"""No suffix by which a format is recognised is longer."""


def _read_copy(blocks: Iterable[bytes], name: str, read: Callable[[Path], Run]) -> Run:
    """Read these bytes as a file; notes and errors name what they came from, not the copy."""
    with _copied(blocks, name) as file:
        run = read(file)
        notes = [note.replace(str(file), name) for note in run.notes]
        failures = [note.replace(str(file), name) for note in run.failures]
        return dataclasses.replace(run, path=None, notes=tuple(notes), failures=tuple(failures))


@contextmanager
def _copied(blocks: Iterable[bytes], name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        file = Path(folder) / f"log{_suffixes(name)}"
        with file.open("wb") as copy:
            for block in blocks:
                copy.write(block)
        try:
            yield file
        except (LogError, MissingExtra) as error:
            raise type(error)(str(error).replace(str(file), name)) from None


def _file_blocks(file: Any, name: str) -> Iterator[bytes]:
    """Yield what a file object holds from its position on; the file stays open."""
    while True:
        try:
            block = file.read(_BLOCK_BYTES)
        except Exception as error:  # closed, open for writing, text that is none
            raise UnreadableLog(
                f"{name} cannot be read: {error}; open it with mode 'rb'"
            ) from error
        if not block:
            return
        if not isinstance(block, str | bytes):
            raise UnreadableLog(f"{name} gives {described(block)} when read, not text or bytes")
        yield block.encode("utf-8", "replace") if isinstance(block, str) else block


def _file_name(file: Any) -> str:
    """Return what a file object calls itself; some know their number only."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name else type(file).__name__


def _suffixes(name: str) -> str:
    """Return how the name of a file ends, such as .csv.gz: some formats are recognised by it."""
    ends = "".join(Path(name).suffixes[-2:])
    return ends if len(ends) <= _SUFFIX_CHARS and ends.replace(".", "").isalnum() else ""


# What is in memory


def _already_read(run: Run, options: ReadOptions) -> Run:
    if options.are_for_logs:
        raise ConfigError("format, run, loss and step are for logs; this run has been read already")
    return run


def _read_table(source: TableSource, options: ReadOptions) -> Run:
    if options.format is not None:
        raise ConfigError(f"format {options.format!r} is for files and text; leave it out")
    wanted = options.wanted
    name = printable(source.name)
    try:
        table = source.load(wanted)
        if not table.num_rows:
            raise UnreadableLog("there are no rows in it; check that the run logged anything")
    except UnreadableLog as error:
        raise UnreadableLog(f"{name}: {error}") from None
    except Exception as error:  # of the package of the table
        raise UnreadableLog(f"{name} cannot be read: {describe_error(error)}") from error
    with _hints_for_python():
        separate(table, Path(name), wanted.run)
        is_hf = source.format == "hf" or (source.format == "table" and has_hf_names(table))
        if is_hf:
            name_summary(table)
        correct_tracker(table)
        run = to_run(table, Path(name), "hf" if is_hf else source.format, wanted)
    return dataclasses.replace(run, path=None, notes=tuple(map(_for_python, run.notes)))


@contextmanager
def _hints_for_python() -> Iterator[None]:
    """Let errors name arguments, not options of the command."""
    try:
        yield
    except LogError as error:
        raise type(error)(_for_python(str(error))) from None


def _for_python(sentence: str) -> str:
    return re.sub(r"--(format|run|loss|step)\b", r"\1=", sentence)


def _refusal(given: Any) -> UnreadableLog:
    what = described(given)
    if isinstance(given, Iterator):
        return UnreadableLog(f"{what} can be read only once; give list(...) of it")
    if isinstance(given, Collection) and not len(given):
        return UnreadableLog(f"{what} without anything in it is no log; {_READABLE}")
    return UnreadableLog(f"{what} is no log; {_READABLE}")
