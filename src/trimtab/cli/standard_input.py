"""Standard input as a file: what is pasted or piped is read like any log.

A pipe that stays open (`tail -f train.log | trimtab diagnose -`) is read until Ctrl-C.
"""

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from trimtab.core.errors import LogError

DASH = Path("-")

_PATIENCE = 2.0
"""Seconds after which an input that has not ended is said to be waited for."""

_BLOCK_BYTES = 1 << 16


@contextmanager
def saved_input(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the paths, with a file in place of `-`: a copy of standard input.

    It is read up to its end or until Ctrl-C, whichever comes first.
    """
    if DASH not in paths:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        file = Path(folder) / "standard-input"
        with file.open("wb") as copy:
            _copy_input(copy)
        try:
            yield [file if path == DASH else path for path in paths]
        except LogError as error:
            raise type(error)(str(error).replace(str(file), "standard input")) from error


def _copy_input(copy: BinaryIO) -> None:
    hint = threading.Timer(_PATIENCE, _say_waiting)
    hint.daemon = True
    hint.start()
    # Also where a shell that started it in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            # read1 returns what has come: an interrupt must not cost what is still in a buffer.
            source = cast(BufferedReader, sys.stdin.buffer)
            while block := source.read1(_BLOCK_BYTES):
                copy.write(block)
    finally:
        hint.cancel()


def _say_waiting() -> None:
    sys.stderr.write(
        "trimtab: reading standard input until it ends; Ctrl-C reports what has come so far\n"
    )
