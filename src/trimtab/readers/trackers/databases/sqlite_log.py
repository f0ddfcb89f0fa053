"""SQLite databases: which tracker's they are, by the columns of their table of metrics."""

from collections.abc import Sequence
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.quoting import listed, printable
from trimtab.readers.table import Table
from trimtab.readers.trackers.databases import mlflow_db, trackio_db
from trimtab.readers.trackers.databases.database import MARK, open_database

_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def read(path: Path, progress: Progress) -> Table:
    """Read the newest run of a database."""
    return _read(path, None, progress)


def read_run(path: Path, run: str, progress: Progress) -> Table:
    """Read one run of a database."""
    return _read(path, run, progress)


def recognises(head: bytes) -> bool:
    """Whether these bytes begin with the mark of SQLite."""
    return head.startswith(MARK)


def databases_among(files: Sequence[Path]) -> list[Path]:
    """The SQLite files, the newest first."""
    return newest_first([file for file in files if file.suffix in _SUFFIXES and _is_database(file)])


def _read(path: Path, run: str | None, progress: Progress) -> Table:
    with open_database(path) as database:
        tables = database.columns()
        columns = tables.get("metrics", frozenset())
        if columns >= mlflow_db.COLUMNS and "runs" in tables:
            table = mlflow_db.read(database, path, run)
        elif columns >= trackio_db.COLUMNS:
            table = trackio_db.read(database, path, run)
        else:
            names = listed([printable(name) for name in tables]) or "none"
            raise UnreadableLog(
                f"{path} is an SQLite database of neither MLflow nor trackio (tables: {names}); "
                "export its metrics as CSV, with a column for the step"
            )
    if database.damage:
        table.add_note(f"The database is damaged: {database.damage}. Read is what could be.")
    if not table.num_rows:
        raise UnreadableLog(f"{path} holds no value of this run; check that it logged anything")
    progress(1, 1)
    return table


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return recognises(file.read(len(MARK)))
    except OSError:
        return False


SQLITE = Format(
    name="sqlite",
    description="SQLite databases of MLflow and trackio",
    suffixes=(),
    matches=recognises,
    load=read,
    binary=True,
    logs_among=databases_among,
    load_run=read_run,
)
"""The format."""
