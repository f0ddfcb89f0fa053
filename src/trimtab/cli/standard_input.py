"""Standard input as a file: what is pasted or piped is read like any log."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trimtab.core.errors import LogError

DASH = Path("-")


@contextmanager
def saved_input(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the paths, with a file in place of `-`: a copy of standard input, up to its end."""
    if DASH not in paths:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        file = Path(folder) / "standard-input"
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        try:
            yield [file if path == DASH else path for path in paths]
        except LogError as error:
            raise type(error)(str(error).replace(str(file), "standard input")) from error
