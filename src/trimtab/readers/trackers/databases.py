"""SQLite databases of MLflow and trackio.

A database is not trusted and not ours: it is opened to read, within limits, and never written. A
made-up one can have views that never end, cells of gigabytes, pages that point in circles. So only
plain tables are queried, cells are bounded, and work is bounded by the size of the file.
"""

import math
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trimtab.core.errors import UnreadableLog
from trimtab.core.text import printable
from trimtab.readers.cells import quoted_names
from trimtab.readers.folders import newest_first, read_start
from trimtab.readers.formats import Format
from trimtab.readers.json_log import parse_object
from trimtab.readers.log_file import Progress
from trimtab.readers.runs import StoredRun, choose_run, note_choice
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.conventions import CALL_STEP, correct_tracker
from trimtab.readers.trackers.points import Points

_MARK = b"SQLite format 3\0"

CELL_BYTES = 1 << 24
"""No cell may be longer: what is logged in one call takes some thousand bytes."""

_WORK_PER_BYTE = 16
"""Instructions of SQLite's machine for each byte of the file: a row of 50 bytes takes some 20."""

_FREE_WORK = 10_000_000
_WORK_STEP = 100_000
_WAL_MODE = 2
_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    """Read one run, the newest if none is wanted."""
    with open_database(path) as database:
        tables = database.columns()
        columns = tables.get("metrics", frozenset())
        if columns >= _MLFLOW_COLUMNS and "runs" in tables:
            table = _read_mlflow(database, path, wanted.run)
        elif columns >= _TRACKIO_COLUMNS:
            table = _read_trackio(database, path, wanted.run)
        else:
            names = quoted_names([printable(name) for name in tables]) or "none"
            raise UnreadableLog(
                f"{path} is an SQLite database of neither MLflow nor trackio (tables: {names}); "
                "export its metrics as CSV, with a column for the step"
            )
    if database.damage:
        table.add_note(f"The database is damaged: {database.damage}. Read is what could be.")
    progress(1, 1)
    return table


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
        """Return the names of the plain tables, and of the columns of each."""
        rows = self.sound_rows("SELECT name, type, sql FROM sqlite_master")
        names = [
            str(name)
            for name, kind, sql in rows
            if kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL")
        ]
        query = "SELECT name FROM pragma_table_info(?)"
        return {
            name: frozenset(str(column) for (column,) in self.sound_rows(query, name))
            for name in names
        }

    def sound_rows(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query up to the first damage, which `damage` describes."""
        found: list[tuple[Any, ...]] = []
        try:
            for row in self._connection.execute(query, parameters):
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
            ((pages,),) = database.sound_rows("PRAGMA page_count")
            ((page_bytes,),) = database.sound_rows("PRAGMA page_size")
            if pages * page_bytes > path.stat().st_size + _log_bytes(path):
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
    """Return the address that opens the file to be read only."""
    address = f"file:{quote(os.fspath(path.absolute()))}?mode=ro"
    with path.open("rb") as file:
        mode = file.read(20)[19:]
    if mode == bytes([_WAL_MODE]) and not _log_bytes(path):
        # Nobody has it open. Without this SQLite would make files beside it, or fail where it
        # cannot; but it would also not see what a writer holds back in the log.
        address += "&immutable=1"
    return address


def _log_bytes(path: Path) -> int:
    """Return how much a writer holds back in the log beside its database."""
    log = path.with_name(path.name + "-wal")
    return log.stat().st_size if log.exists() else 0


# MLflow: every metric of every run in one table, a row for each value. NaN is written as 0 with a
# flag beside it, an infinity as the largest number that there is.

_MLFLOW_COLUMNS = frozenset({"run_uuid", "key", "value", "timestamp", "step", "is_nan"})
"""What MLflow's table of metrics has."""


def _read_mlflow(database: Database, path: Path, wanted: str | None) -> Table:
    runs = _mlflow_runs(database)
    run = choose_run(path, runs, wanted)
    query = (
        "SELECT key, step, value, is_nan, timestamp, rowid FROM metrics "
        "WHERE typeof(key) = 'text' AND typeof(step) = 'integer' "
        "AND typeof(value) IN ('real', 'integer') AND typeof(timestamp) = 'integer' "
        "AND run_uuid = ?"
    )
    rows = database.sound_rows(query, run.id)
    # By time, and not by step: a run that was restarted has some steps twice.
    rows.sort(key=lambda row: row[4:])
    points = Points()
    for key, step, value, is_nan, timestamp, _ in rows:
        # MLflow writes the infinities as the largest numbers.
        is_infinite = abs(value) >= sys.float_info.max
        number = math.copysign(math.inf, value) if is_infinite else float(value)
        points.add(key, step, math.nan if is_nan else number, timestamp / 1000)
    table = points.to_table()
    note_choice(table, run, runs)
    return table


def _mlflow_runs(database: Database) -> list[StoredRun]:
    """Return the runs with metrics, the newest first, deleted ones last."""
    logged = {run for (run,) in database.sound_rows("SELECT run_uuid FROM metrics")}
    found = [
        (lifecycle == "deleted", -start if isinstance(start, int) else 0, str(run), str(name or ""))
        for run, name, start, lifecycle in database.sound_rows(
            "SELECT run_uuid, name, start_time, lifecycle_stage FROM runs"
        )
        if run in logged
    ]
    return [StoredRun(id=run, name=name) for _, _, run, name in sorted(found)]


# trackio: a row for each call of log(), with the metrics as JSON, in which NaN and the infinities
# are strings.

_TRACKIO_COLUMNS = frozenset({"id", "timestamp", "run_name", "step", "metrics"})
"""What trackio's table of metrics has."""

_RUNS = "SELECT run_id, run_name, id FROM metrics"
_ROWS = "SELECT id, timestamp, step, metrics FROM metrics WHERE run_id = ?"


def _read_trackio(database: Database, path: Path, wanted: str | None) -> Table:
    # Older versions have only names.
    key = "run_id" if "run_id" in database.columns()["metrics"] else "run_name"
    runs = _trackio_runs(database, _RUNS.replace("run_id", key))
    run = choose_run(path, runs, wanted)
    rows = database.sound_rows(_ROWS.replace("run_id", key), run.id)
    rows = [row for row in rows if isinstance(row[0], int)]
    records = []
    num_bad = 0
    for _, timestamp, step, metrics in sorted(rows, key=lambda row: row[0]):
        text = metrics.decode("utf-8", "replace") if isinstance(metrics, bytes) else str(metrics)
        record = parse_object(text)
        num_bad += record is None
        if record:
            count = float(step) if isinstance(step, int | float) else None
            own = {CALL_STEP: count, "_timestamp": _seconds(timestamp)}
            records.append({**own, **record})
    table = Table()
    table.add_records(records)
    note_choice(table, run, runs)
    table.note_counts({"row{s} {is} left out: the metrics are no JSON object": num_bad})
    return table


def _trackio_runs(database: Database, query: str) -> list[StoredRun]:
    """Return the runs, the one that was logged to last first."""
    rows = [row for row in database.sound_rows(query) if isinstance(row[2], int)]
    runs: dict[str, str] = {}
    for run, name, _ in sorted(rows, key=lambda row: -row[2]):
        runs.setdefault(str(run), str(name))
    return [StoredRun(id=run, name=name) for run, name in runs.items()]


def _seconds(timestamp: object) -> float | None:
    """Return a time as trackio writes it (ISO 8601) in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _databases_among(files: Sequence[Path]) -> list[Path]:
    found = (file for file in files if file.suffix in _SUFFIXES)
    return newest_first([file for file in found if read_start(file, len(_MARK)) == _MARK])


SQLITE = Format(
    name="sqlite",
    description="SQLite databases of MLflow and trackio",
    matches=lambda head: head.startswith(_MARK),
    load=_read,
    finish=correct_tracker,
    binary=True,
    logs_among=_databases_among,
)
