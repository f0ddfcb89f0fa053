"""SQLite files that are not trusted and not ours: opened to read, within limits, never written.

A made-up database can have views that never end, cells of gigabytes, pages that point in circles.
So only plain tables are asked, cells are bounded, and work is bounded by the size of the file.
"""

import os
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trimtab.core.errors import UnreadableLog

MARK = b"SQLite format 3\0"

CELL_BYTES = 1 << 24
"""No cell may be longer: what is logged in one call takes some thousand bytes."""

_WORK_PER_BYTE = 16
"""Instructions of SQLite's machine for each byte of the file: a row of 50 bytes takes some 20."""

_FREE_WORK = 10_000_000
_WORK_STEP = 100_000
_WAL_MODE = 2
_FIRST_PAGE = struct.Struct(">16xH6xII60xI")
"""Size of a page; count of changes; number of pages; count of changes when these were counted."""


class Database:
    """An open database."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self.damage = ""
        """What SQLite says against the file, if there is anything."""
        self._work = _FREE_WORK + _WORK_PER_BYTE * path.stat().st_size
        connection.set_progress_handler(self._spend, _WORK_STEP)

    def columns(self) -> Mapping[str, frozenset[str]]:
        """The names of the plain tables, and of the columns of each."""
        rows = self.rows("SELECT name, type, sql FROM sqlite_master")
        names = [
            str(name)
            for name, kind, sql in rows
            if kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL")
        ]
        query = "SELECT name FROM pragma_table_info(?)"
        return {
            name: frozenset(str(column) for (column,) in self.rows(query, name)) for name in names
        }

    def rows(self, query: str, *parameters: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one after the other."""
        yield from self._connection.execute(query, parameters)

    def sound_rows(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        """The rows of a query, as far as the file is sound; `damage` says why there are no more."""
        found: list[tuple[Any, ...]] = []
        try:
            for row in self.rows(query, *parameters):
                found.append(row)  # what came before an error is kept
        except sqlite3.DatabaseError as error:
            if not found:
                raise
            self.damage = str(error)
        return found

    def _spend(self) -> int:
        self._work -= _WORK_STEP
        return int(self._work < 0)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a database to read it; raises UnreadableLog for whatever SQLite says against it."""
    try:
        connection = sqlite3.connect(_address(path), uri=True)
        try:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, CELL_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            database = Database(connection, path)
            if _is_cut(path):
                database.damage = "it is shorter than its first page says"
            yield database
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UnreadableLog(
            f"{path} cannot be read as an SQLite database: {error}; if it is in use or was copied "
            "without its -wal or -journal file, copy them together and read the copy"
        ) from error


def _address(path: Path) -> str:
    """The file as an address that opens it to be read only."""
    address = f"file:{quote(os.fspath(path.absolute()))}?mode=ro"
    with path.open("rb") as file:
        mode = file.read(20)[19:]
    log = path.with_name(path.name + "-wal")
    if mode == bytes([_WAL_MODE]) and not (log.exists() and log.stat().st_size):
        # Nobody has it open. Without this SQLite would make files beside it, or fail where it
        # cannot; but it would also not see what a writer holds back in the log.
        address += "&immutable=1"
    return address


def _is_cut(path: Path) -> bool:
    """Whether pages are missing at the end of the file."""
    with path.open("rb") as file:
        head = file.read(_FIRST_PAGE.size).ljust(_FIRST_PAGE.size)
    size, changed, pages, counted = _FIRST_PAGE.unpack(head)
    # The number of pages is only valid if it was written with the last change.
    wanted = pages * (65536 if size == 1 else size)
    return bool(changed == counted and wanted > path.stat().st_size)
