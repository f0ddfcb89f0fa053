"""Which of trimtab's formats a file has: by its content, then by its suffix."""

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import Format
from trimtab.readers.log_file import read_head
from trimtab.readers.registry import FORMATS

_HEAD_BYTES = 1 << 20
"""Enough to look past the arguments, warnings and source that trainers print first."""

_FOREIGN_BYTES = {
    b"PK\x03\x04": "a zip archive; unpack it first (PyTorch checkpoints are zip archives too)",
    b"\x28\xb5\x2f\xfd": "zstd data; unpack it first (unzstd)",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"\x80": "a Python pickle, which is never opened; write the numbers as CSV or JSON lines",
}

# Left out of this: characters that text may contain, and NUL, which a crash can leave in any file.
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")


def load_head(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip; raises UnreadableLog if not a log."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
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
        for format in FORMATS.values():
            if format.binary and format.matches(head):
                raise UnreadableLog(
                    f"{path} is gzip data around {format.description}; unpack it first (gunzip)"
                )
    return head


def by_content(path: Path, head: bytes) -> Format | None:
    """The format that the first bytes show; of binary formats, also one that the suffix shows."""
    binary = [format for format in FORMATS.values() if format.binary]
    for format in binary:
        if format.matches(head):
            return format
    for format in binary:
        if path.suffix.lower() in format.suffixes:  # a file whose first bytes are damaged
            return format
    if _describe_foreign(head):
        return None
    head = head.replace(b"\0", b"")
    return next((format for format in FORMATS.values() if format.matches(head)), None)


def by_suffix(path: Path, head: bytes, others: Sequence[str] = ()) -> Format:
    """The format that the suffix shows; raises UnreadableLog if the file is not a log.

    `others` describes the formats of readers from outside, for the error message.
    """
    known = "; ".join([*(format.description for format in FORMATS.values()), *others])
    foreign = _describe_foreign(head)
    if foreign:
        raise UnreadableLog(f"{path} looks like {foreign} (known formats: {known})")
    suffix = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    for format in FORMATS.values():
        if suffix in format.suffixes:
            return format
    begins = head.replace(b"\0", b"").lstrip()[:40].decode("utf-8", "replace")
    raise UnreadableLog(
        f"{path} begins with {begins!r}, which is no known format ({known}); "
        "convert it to one of these"
    )


def _describe_foreign(head: bytes) -> str | None:
    """What the bytes look like, if no known format begins like this."""
    for start, description in _FOREIGN_BYTES.items():
        if head.startswith(start):
            return description
    if _CONTROL.search(head[:1024]):
        return f"binary data, it begins with the bytes {head[:16].hex(' ')}"
    return None
