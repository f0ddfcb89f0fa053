"""Text that every machine with Python has: the standard library's source, labelled by source.

code      .py files without their docstrings
prose     the docstrings, one document per file
tables    the character tables of `encodings`: long, regular, easy to predict
garbage   text that a filter should remove, made from the code: base64, minified, repeated

Every 20th file is held out. The text depends on the version of Python and hardly on the machine.
"""

import ast
import base64
import contextlib
import hashlib
import itertools
import os
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trimtab.core.errors import LabError

_PERIOD = 20
"""One file in 20 is held out (5 %), and garbage is made from another one in 20."""

_GARBAGE_BYTES = 4096
"""Maximum size of a garbage document. It makes garbage 5 % of all tokens, one in every few rows."""

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"})
"""Folders to leave out: third-party code, tests (more than half of all text), and help texts
generated from the manual."""

_OF_THIS_MACHINE = ("config-", "_sysconfigdata")
"""Folders and files with paths and flags of one particular build."""

_TABLES = "encodings"
"""The folder whose files are character tables."""


class Source(StrEnum):
    """The kind of text."""

    CODE = "code"
    PROSE = "prose"
    TABLES = "tables"
    GARBAGE = "garbage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A piece of text with its label."""

    source: Source
    text: str
    held_out: bool
    """Whether it is kept for evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the standard library."""

    path: Path
    name: str
    """Its path relative to the library, with slashes."""
    size: int
    """In bytes."""


def library_files(max_bytes: int, library: Path | None = None) -> list[SourceFile]:
    """Return the library's .py files, up to a total size, in the same order on every machine."""
    root = library or Path(sysconfig.get_path("stdlib"))
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if _is_wanted(name)]  # os.walk skips the others
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            with contextlib.suppress(OSError):  # a dangling link has no size
                name = path.relative_to(root).as_posix()
                if _is_wanted(path.name):
                    files.append(SourceFile(path=path, name=name, size=path.stat().st_size))
    # Sorted by the digest of the name, so that the first files are a random sample of all.
    files.sort(key=lambda file: hashlib.sha256(file.name.encode()).digest())
    ends = itertools.accumulate(file.size for file in files)
    taken = [file for file, end in zip(files, ends, strict=True) if end <= max_bytes]
    if not taken:
        raise LabError(
            f"no Python source within {max_bytes} bytes under {root}: the lab takes its text from "
            "the standard library, which must be installed as .py files"
        )
    return taken


def _is_wanted(name: str) -> bool:
    """Return whether a folder or file has the same content on all machines."""
    return name not in _SKIPPED and not name.startswith(_OF_THIS_MACHINE)


def documents_of(file: SourceFile, place: int) -> Iterator[Document]:
    """Yield the documents of the file at a place in the listing; none if it cannot be read."""
    held_out = place % _PERIOD == 0
    read = _read(file.path)
    if read is None:
        return
    text, tree = read
    code, prose = _split(text, tree)
    source = Source.TABLES if file.name.startswith(f"{_TABLES}/") else Source.CODE
    for label, part in ((source, code), (Source.PROSE, prose)):
        if part.strip():
            yield Document(source=label, text=part, held_out=held_out)
    if place % _PERIOD == 1 and code.strip():
        for garbage in _garbage(code):
            yield Document(source=Source.GARBAGE, text=garbage, held_out=False)


def _read(path: Path) -> tuple[str, ast.Module] | None:
    """Return a file's text and syntax tree; None if it cannot be read or parsed."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated escapes in the library's strings
            text = file.read()
            return text, ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _split(text: str, tree: ast.Module) -> tuple[str, str]:
    """Return the code without its docstrings, and the docstrings."""
    lines: list[str | None] = list(text.split("\n"))
    prose: dict[int, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
        prose[first] = docstring
        # A docstring on the same line as its `def` is kept; there are a few dozen of them.
        if not (lines[first - 1] or "")[: node.body[0].col_offset].strip():
            lines[first - 1 : last] = [None] * (last - first + 1)
    code = "\n".join(line for line in lines if line is not None)
    return code, "\n\n".join(prose[number] for number in sorted(prose))


def _garbage(code: str) -> Iterator[str]:
    """Text that a filter should remove, made from a piece of code."""
    piece = code[:_GARBAGE_BYTES]
    encoded = base64.encodebytes(piece.encode()).decode()
    yield encoded[:_GARBAGE_BYTES]
    statements = (line.partition("#")[0].strip() for line in code.split("\n"))
    dense = ";".join(statement for statement in statements if statement)
    yield re.sub(r"\s*([-+*/%=<>,:(){}\[\]])\s*", r"\1", dense)[:_GARBAGE_BYTES]
    boilerplate = "\n".join([line for line in code.split("\n") if line.strip()][:3]) + "\n"
    yield boilerplate * (_GARBAGE_BYTES // len(boilerplate) + 1)
