"""MLflow's database: every metric of every run in one table, a row for each value.

NaN is written as 0 with a flag beside it, an infinity as the largest number that there is.
"""

import math
import sys
from pathlib import Path

from trimtab.readers.table import Table
from trimtab.readers.trackers.databases.database import Database
from trimtab.readers.trackers.hf_losses import is_by_hf, restore_hf_losses
from trimtab.readers.trackers.points import Points
from trimtab.readers.trackers.runs import StoredRun, choose_run, note_choice

COLUMNS = frozenset({"run_uuid", "key", "value", "timestamp", "step", "is_nan"})
"""What the table of metrics has."""


def read(database: Database, path: Path, wanted: str | None) -> Table:
    """Read one run, the newest if none is wanted."""
    runs = _runs(database)
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
        points.add(key, step, math.nan if is_nan else _value(value), timestamp / 1000)
    table = points.to_table()
    note_choice(table, run, runs)
    if is_by_hf(table, ""):
        restore_hf_losses(table)
    return table


def _runs(database: Database) -> list[StoredRun]:
    """The runs with metrics, the newest first, deleted ones last."""
    logged = {run for (run,) in database.sound_rows("SELECT run_uuid FROM metrics")}
    found = [
        (lifecycle == "deleted", -start if isinstance(start, int) else 0, str(run), str(name or ""))
        for run, name, start, lifecycle in database.rows(
            "SELECT run_uuid, name, start_time, lifecycle_stage FROM runs"
        )
        if run in logged
    ]
    return [StoredRun(id=run, name=name) for _, _, run, name in sorted(found)]


def _value(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else float(value)
