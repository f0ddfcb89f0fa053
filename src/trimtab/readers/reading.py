"""Read a log of any known format. Nothing in a log is ever executed or unpickled.

Which reader reads a log, unless the format is given by name: the first that recognises it among

1. the readers that were passed,
2. trimtab's own formats, by the content of the file,
3. the readers of installed packages; a log that trimtab recognises itself never runs their code,
4. trimtab's own formats, by the suffix of the file.

A reader of 1 or 3 that fails becomes a note, and the next one is tried.
"""

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from os import PathLike
from pathlib import Path

from trimtab.core.errors import ConfigError, LogError, NoUsableLoss, UnreadableLog
from trimtab.core.plugins import READERS, describe_error, load_plugins
from trimtab.core.run import Reader, Run
from trimtab.core.signals import LOSS
from trimtab.readers.csv_log import CSV, LIGHTNING
from trimtab.readers.facts import find_checkpoints, find_facts, known_facts
from trimtab.readers.folders import Choice, choose_log, no_log_in
from trimtab.readers.formats import Format
from trimtab.readers.general.reader import GENERAL, NOTEBOOK
from trimtab.readers.json_log import HF, JSON, JSONL, MLPERF
from trimtab.readers.log_file import Progress, no_progress, read_head
from trimtab.readers.table import Wanted
from trimtab.readers.trackers.databases import SQLITE
from trimtab.readers.trackers.mlflow_files import MLFLOW
from trimtab.readers.trackers.tensorboard import TENSORBOARD
from trimtab.readers.trackers.wandb import WANDB

# Trackers recognise their files by a mark.
_TRACKERS = (HF, TENSORBOARD, WANDB, SQLITE, MLFLOW, LIGHTNING)

FORMATS: Mapping[str, Format] = {
    format.name: format for format in (*_TRACKERS, NOTEBOOK, JSON, JSONL, MLPERF, CSV, GENERAL)
}
"""By name, in the order in which they are tried."""

_BINARY = [format for format in FORMATS.values() if format.binary]

_HEAD_BYTES = 1 << 20
"""Enough to read past the arguments, warnings and source that trainers print first."""

_FOREIGN = {
    rb"(?s)PK.{0,4090}?(?:\[Content_Types\]\.xml|xl/)": "an Excel workbook; save the sheet as CSV",
    rb"PAR1": "a Parquet file; in Python, trimtab.diagnose(pandas.read_parquet(FILE)) reads it",
    rb"PK\x03\x04": "a zip archive; unpack it first (PyTorch checkpoints are zip archives too)",
    rb"\x28\xb5\x2f\xfd": "zstd data; unpack it first (unzstd)",
    rb"\x80": "a Python pickle, which is never opened; write the numbers as CSV or JSON lines",
    rb"(?i)(?:\xef\xbb\xbf)?\s*<(?:!doctype )?html\b": (
        "a web page; of a chart of W&B, download the CSV export instead"
    ),
    rb"\0*+\Z": "binary data, it begins with NUL bytes",
}
"""What the first bytes of a file show it to be, by a pattern."""

# Left out of this: characters that text may contain, and NUL, which a crash can leave in any file.
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")


def read_log(
    path: str | PathLike[str],
    *,
    format: str | None = None,
    readers: Sequence[Reader] = (),
    progress: Progress | None = None,
    loss: str | None = None,
    step: str | None = None,
    run: str | None = None,
) -> Run:
    """Read a training log.

    The format is the one given by name, else the first that recognises the log: `readers`,
    trimtab's own formats, then installed plug-ins (entry points of the group `trimtab.readers`).
    In a folder, the newest log of a tracker is read. Where a file holds several runs, `run` (or
    `file#run`) names one of them, else the newest is read, with a note on the others.
    `loss` and `step` are the names of these columns in the log, where a reader would choose others.
    `progress` is called now and then with the bytes done and the bytes in total. Raises
    UnreadableLog if there are no rows to read, NoUsableLoss if no column is a loss, ConfigError if
    there is no format of that name.
    """
    outside = _OutsideReaders(readers)
    try:
        file, named = _split_run(Path(path))
        head = b"" if file.is_dir() else _load_head(file)
        wanted = Wanted(run=named if run is None else run, loss=loss, step=step)
        log = _Log(file, head, progress or no_progress, wanted)
        return _read_as(format, log, outside) if format else _read_recognised(log, outside)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableLog(f"{path} cannot be read: {reason}; check the file") from error


def log_formats(readers: Sequence[Reader] = ()) -> list[str]:
    """Return the names of all log formats: trimtab's, of these readers and of plug-ins."""
    return _OutsideReaders(readers).formats


@dataclass(frozen=True, slots=True)
class _Log:
    """The log to read."""

    path: Path
    head: bytes
    """Empty if the path is a folder."""
    progress: Progress
    wanted: Wanted


class _OutsideReaders:
    """Readers that were passed or are installed, and notes on those that failed."""

    def __init__(self, given: Sequence[Reader]) -> None:
        for reader in given:
            if not isinstance(reader, Reader):
                raise ConfigError(
                    f"{reader!r} is not a log reader; it needs name, description, recognises and "
                    "read (trimtab.core.run.Reader)"
                )
        self.given = tuple(given)
        self.notes: list[str] = []

    @cached_property
    def installed(self) -> tuple[Reader, ...]:
        """The plug-ins that loaded; one whose name is taken is left out."""
        made, failures = load_plugins(
            READERS,
            Reader,  # type: ignore[type-abstract]
            needs="name, description, recognises or read",
            taken=FORMATS,
        )
        self.notes += failures
        return tuple(made.values())

    @property
    def formats(self) -> list[str]:
        return sorted({*FORMATS, *(reader.name for reader in (*self.given, *self.installed))})

    def named(self, format: str) -> Reader | None:
        """Return the reader of a format: one that was passed, else a plug-in."""
        readers = self.given if format in FORMATS else (*self.given, *self.installed)
        return next((reader for reader in readers if reader.name == format), None)

    def read_as(self, reader: Reader, log: _Log) -> Run:
        """Read the log with the reader that was asked for by name."""
        try:
            run = _read_checked(reader, log)
        except (LogError, OSError):
            raise
        except Exception as error:
            raise UnreadableLog(
                f"{log.path}: the reader {reader.name!r} failed ({describe_error(error)}); report "
                "it to its author, or leave out the format"
            ) from error
        return self._finish(run, log)

    def read_recognised(self, readers: Sequence[Reader], log: _Log) -> Run | None:
        """Read the log with the first reader that recognises it and does not fail."""
        for reader in readers:
            try:
                run = _read_checked(reader, log) if reader.recognises(log.path, log.head) else None
            except Exception as error:
                self.notes.append(
                    f"The reader {reader.name!r} failed and is left out: {describe_error(error)}."
                )
            else:
                if run is not None:
                    return self._finish(run, log)
        return None

    def _finish(self, run: Run, log: _Log) -> Run:
        if log.wanted.run is not None:
            raise UnreadableLog(
                f"{log.path} is read by {run.format!r}, which reads one run per file; "
                f"leave out the run {log.wanted.run!r}"
            )
        return _with_notes(run, self.notes)


def _read_as(format: str, log: _Log, outside: _OutsideReaders) -> Run:
    reader = outside.named(format)
    if reader is not None:
        return outside.read_as(reader, log)
    if format not in FORMATS:
        close = get_close_matches(format.lower(), outside.formats, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"unknown log format {format!r}; {meant}choose from {', '.join(outside.formats)}"
        )
    known = FORMATS[format]
    choice = _choice(log, known) if log.head else choose_log(log.path, [known])
    if choice is None:
        raise no_log_in(log.path, format)
    return _read(choice, log)


def _read_recognised(log: _Log, outside: _OutsideReaders) -> Run:
    run = outside.read_recognised(outside.given, log)
    choices = _choices_by_content(log) if run is None else []
    if run is None and not choices:
        run = outside.read_recognised(outside.installed, log)
    if run is not None:
        return run
    try:
        return _with_notes(_read_first(choices, log, outside), outside.notes)
    except LogError as error:
        if not outside.notes:
            raise
        raise type(error)("\n  ".join([str(error), *outside.notes])) from error


def _read_first(choices: Sequence[Choice], log: _Log, outside: _OutsideReaders) -> Run:
    """Read the log in the first format that yields records, the general one last.

    Raises what the first one raised: it knows best what the log lacks.
    """
    if not log.head and not choices:
        return _read_printed(log, outside)
    tried = [*(choices or _choices_by_suffix(log))]
    if _may_be_text(choices, log):
        tried.append(_choice(log, GENERAL))
    errors: list[LogError] = []
    for choice in tried:
        try:
            return _read(choice, log)
        except LogError as error:
            errors.append(error)
    if errors and tried[0].format is not GENERAL:
        raise errors[0]
    raise _unknown(log, outside, "".join(map(str, errors)))


def _read_printed(folder: _Log, outside: _OutsideReaders) -> Run:
    """Read the newest text in a folder without a log of a tracker; its content decides how."""
    choice = choose_log(folder.path, [GENERAL])
    if choice is None:
        raise no_log_in(folder.path)
    log = replace(folder, path=choice.path, head=_load_head(choice.path))
    run = _read_first(_choices_by_content(log), log, outside)
    return replace(run, notes=(*choice.notes, *run.notes))


def _read(choice: Choice, log: _Log) -> Run:
    run = choice.format.read(choice.path, log.progress, log.wanted)
    head = log.head.decode("utf-8", "replace")
    text = "" if choice.format.binary else head
    stated = replace(find_facts(text), checkpoints=find_checkpoints(log.path, text))
    facts = known_facts(stated, run.facts)
    return replace(run, notes=(*choice.notes, *run.notes), facts=facts)


def _read_checked(reader: Reader, log: _Log) -> Run:
    """Read the log with a reader that is not ours; raises whatever it raises."""
    run = reader.read(log.path)
    if not isinstance(run, Run):
        raise TypeError(f"read returned {type(run).__name__}, not trimtab.core.run.Run")
    if not run.block.column(LOSS).recorded:
        found = ", ".join(run.block.columns) or "none"
        raise NoUsableLoss(
            f"{log.path}: the reader {reader.name!r} found no training loss (signals: {found}); "
            f"it has to be named {LOSS!r}"
        )
    return replace(run, format=reader.name, path=run.path or log.path)


def _with_notes(run: Run, failures: Sequence[str]) -> Run:
    return replace(run, notes=(*failures, *run.notes), failures=tuple(failures))


def _split_run(path: Path) -> tuple[Path, str | None]:
    """Return the file and the run in it, where a path is a file, a # and the name of a run."""
    text = str(path)
    for index in [match.start() for match in re.finditer("#", text)]:
        if not path.exists() and Path(text[:index]).is_file():
            return Path(text[:index]), text[index + 1 :]
    return path, None


# Which of trimtab's formats a log has


def _load_head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed; raises UnreadableLog if it is not a log."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        address = re.sub("^(https?:)/+", r"\1//", str(path))  # a path has no two slashes
        if address.startswith(("http://", "https://")):
            raise UnreadableLog(
                f"{address} is an address, and logs are read from files; download it, or pipe it: "
                "curl -L ADDRESS | trimtab diagnose -"
            ) from None
        raise UnreadableLog(f"{path} does not exist; check the path") from None
    except ValueError as error:
        raise UnreadableLog(f"{str(path)!r} is not a path: {error}") from error
    if not stat.S_ISREG(mode):
        raise UnreadableLog(f"{path} is a device or a pipe; give a regular file")
    head, is_gzip = read_head(path, _HEAD_BYTES)
    if not head:
        size = "holds no gzip data" if is_gzip else "is empty (0 bytes)"
        raise UnreadableLog(f"{path} {size}; check that the run logged anything")
    if is_gzip:
        for format in _BINARY:
            if format.matches(head):
                raise UnreadableLog(
                    f"{path} is gzip data around {format.description}; unpack it first (gunzip)"
                )
    return head


def _choices_by_content(log: _Log) -> list[Choice]:
    if log.head:
        return [_choice(log, format) for format in _formats_by_content(log)]
    choice = choose_log(log.path, [one for one in FORMATS.values() if one is not GENERAL])
    return [choice] if choice else []


def _formats_by_content(log: _Log) -> list[Format]:
    """Return the formats that the first bytes show; a binary one also if only the suffix does."""
    binary = [format for format in _BINARY if format.matches(log.head)]
    # By the suffix, a file whose first bytes are damaged.
    binary += [format for format in _BINARY if log.path.suffix.lower() in format.suffixes]
    if binary or _describe_foreign(log.head):
        return binary[:1]
    head = log.head.replace(b"\0", b"")
    return [format for format in FORMATS.values() if format.matches(head)]


def _choices_by_suffix(log: _Log) -> list[Choice]:
    if not log.head or _describe_foreign(log.head):
        return []
    is_packed = log.path.suffix.lower() == ".gz"
    suffix = (log.path.with_suffix("") if is_packed else log.path).suffix.lower()
    return [_choice(log, one) for one in FORMATS.values() if suffix in one.suffixes][:1]


def _choice(log: _Log, format: Format) -> Choice:
    return Choice(path=log.path, format=format)


def _may_be_text(choices: Sequence[Choice], log: _Log) -> bool:
    """Return whether the general reader may try: not on bytes, nor on a document of a tracker."""
    if not log.head or _describe_foreign(log.head) or log.path.suffix.lower() == ".json":
        return False
    return not any(choice.format in (*_TRACKERS, NOTEBOOK, JSON) for choice in choices)


def _unknown(log: _Log, outside: _OutsideReaders, reason: str = "") -> UnreadableLog:
    """Return the error for a file that no reader reads."""
    path, head = log.path, log.head
    if not head:
        return no_log_in(path)
    if "--loss" in reason:  # a text with numbers: what helps is a name, not another format
        return UnreadableLog(reason)
    foreign = _describe_foreign(head)
    if foreign:
        return UnreadableLog(f"{path} looks like {foreign}; docs/readers.md lists what is read")
    begins = head.replace(b"\0", b"").lstrip()[:40].decode("utf-8", "replace")
    return UnreadableLog(
        f"{path} begins with {begins!r}, and no line has a number with a name, as in "
        f"'step 10 loss 2.5'\n  formats for --format: {', '.join(outside.formats)}"
    )


def _describe_foreign(head: bytes) -> str | None:
    """Describe the bytes, if no known format begins like this."""
    for pattern, description in _FOREIGN.items():
        if re.match(pattern, head):
            return description
    if _CONTROL.search(head[:1024]):
        return f"binary data, it begins with the bytes {head[:16].hex(' ')}"
    return None
