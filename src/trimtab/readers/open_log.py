"""Open a log of any known format. Nothing in a log is ever executed or unpickled."""

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from trimtab.core.block import Block
from trimtab.core.errors import UnreadableLog
from trimtab.readers.blocks import to_block
from trimtab.readers.csv_log import CSV
from trimtab.readers.folders import choose_log
from trimtab.readers.formats import LogFormat, Reader
from trimtab.readers.jsonl_log import JSONL
from trimtab.readers.lines import Progress
from trimtab.readers.table import Table
from trimtab.readers.text import TEXT_READERS
from trimtab.readers.trackers import TRACKER_READERS

READERS: Mapping[LogFormat, Reader] = {
    **TRACKER_READERS,
    LogFormat.JSONL: JSONL,
    **TEXT_READERS,
    LogFormat.CSV: CSV,
}
"""In the order in which they are tried."""

_HEAD_BYTES = 1 << 20
"""Enough to look past the arguments, warnings and source that trainers print first."""

_FOREIGN_BYTES = {
    b"\x1f\x8b": "gzip data; unpack it first (gunzip)",
    b"PK\x03\x04": "a zip archive; unpack it first (PyTorch checkpoints are zip archives too)",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it first (unzstd)",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"\x80": "a Python pickle, which is never opened; write the numbers as CSV or JSON lines",
}

# Not among them: what text may hold, and NUL, which a crash can leave behind in any file.
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """A log as it was read."""

    block: Block
    path: Path
    format: LogFormat
    names: Mapping[str, str]
    """Signal or axis to the name that it has in the log."""
    notes: tuple[str, ...]
    """Everything that was left out, repaired, chosen or guessed, in plain sentences."""


def read_log(
    path: str | PathLike[str],
    *,
    format: LogFormat | None = None,
    progress: Progress | None = None,
) -> LogReading:
    """Read a training log into one block.

    The format is recognised by the content of the file, then by its suffix, unless it is given.
    In a folder, the newest log of a tracker is read. Where a file holds several runs, `file#run`
    names one of them, else the newest is read.
    `progress` is called now and then with the bytes done and the bytes in all. Raises
    UnreadableLog if there are no rows to be had, NoUsableLoss if there is no loss in them.
    """
    path = Path(path)
    choice: tuple[str, ...] = ()
    try:
        path, run = _split_run(path)
        if path.is_dir():
            chosen = choose_log(path, READERS, format)
            path, found, choice = chosen.path, chosen.format, chosen.notes
        else:
            head = _read_head(path)
            found = format or _recognise(path, head)
        table = _read_table(READERS[found], path, run, progress or _no_progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableLog(f"{path} cannot be read: {reason}; check the file") from error
    named = to_block(table, path)
    return LogReading(
        block=named.block, path=path, format=found, names=named.names, notes=(*choice, *named.notes)
    )


def _split_run(path: Path) -> tuple[Path, str | None]:
    """The file and the run in it, where a path is a file, a # and the name of a run."""
    text = str(path)
    for place in [match.start() for match in re.finditer("#", text)]:
        if not path.exists() and Path(text[:place]).is_file():
            return Path(text[:place]), text[place + 1 :]
    return path, None


def _read_table(reader: Reader, path: Path, run: str | None, progress: Progress) -> Table:
    if run is None:
        return reader.read(path, progress)
    if reader.read_run is None:
        raise UnreadableLog(f"{path} ({reader.description}) holds one run; leave out {'#' + run!r}")
    return reader.read_run(path, run, progress)


def _read_head(path: Path) -> bytes:
    """The first bytes of a file that can be a log at all."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UnreadableLog(f"{path} does not exist; check the path") from None
    except ValueError as error:
        raise UnreadableLog(f"{str(path)!r} is not a path: {error}") from error
    if not stat.S_ISREG(mode):
        raise UnreadableLog(f"{path} is a device or a pipe; give a regular file")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise UnreadableLog(f"{path} is empty (0 bytes); check that the run logged anything")
    return head


def _recognise(path: Path, head: bytes) -> LogFormat:
    known = "; ".join(reader.description for reader in READERS.values())
    binary = {found: reader for found, reader in READERS.items() if reader.binary}
    for found, reader in binary.items():
        if reader.recognises(head):
            return found
    for found, reader in binary.items():
        if path.suffix.lower() in reader.suffixes:  # a file whose first bytes are damaged
            return found
    foreign = _describe_foreign(head)
    if foreign:
        raise UnreadableLog(f"{path} looks like {foreign} (known formats: {known})")
    head = head.replace(b"\0", b"")
    for found, reader in READERS.items():
        if reader.recognises(head):
            return found
    for found, reader in READERS.items():
        if path.suffix.lower() in reader.suffixes:
            return found
    begins = head.lstrip()[:40].decode("utf-8", "replace")
    raise UnreadableLog(
        f"{path} begins with {begins!r}, which is no known format ({known}); "
        "convert it to one of these"
    )


def _describe_foreign(head: bytes) -> str | None:
    """What the bytes look like, if no known format begins like this."""
    for start, description in _FOREIGN_BYTES.items():
        if head.startswith(start):
            return description
    if re.match(rb"\s*\[\s*[{\]]", head.removeprefix(b"\xef\xbb\xbf")):
        return "one JSON array; write one object a line instead (jq -c '.[]')"
    if _CONTROL.search(head[:1024]):
        return f"binary data, it begins with the bytes {head[:16].hex(' ')}"
    return None


def _no_progress(done: int, total: int) -> None:
    """Tell nobody."""
