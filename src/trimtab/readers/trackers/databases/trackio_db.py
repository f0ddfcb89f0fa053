"""trackio's database: a row for each call of log(), with the metrics as JSON.

NaN and the infinities are strings in it.
"""

from datetime import datetime
from pathlib import Path

from trimtab.readers.json_objects import parse_object
from trimtab.readers.table import Table
from trimtab.readers.trackers.call_steps import CALL_STEP, prefer_steps_beside_loss
from trimtab.readers.trackers.databases.database import Database
from trimtab.readers.trackers.hf_losses import is_by_hf, restore_hf_losses
from trimtab.readers.trackers.runs import StoredRun, choose_run, note_choice

COLUMNS = frozenset({"id", "timestamp", "run_name", "step", "metrics"})
"""What the table of metrics has."""

_RUNS = {
    "run_id": "SELECT run_id, run_name, id FROM metrics",
    "run_name": "SELECT run_name, run_name, id FROM metrics",
}
_ROWS = {
    "run_id": "SELECT id, timestamp, step, metrics FROM metrics WHERE run_id = ?",
    "run_name": "SELECT id, timestamp, step, metrics FROM metrics WHERE run_name = ?",
}
"""What identifies a run: older versions have only names."""

_HF_PREFIX = "train/"


def read(database: Database, path: Path, wanted: str | None) -> Table:
    """Read one run, the newest if none is wanted."""
    key = "run_id" if "run_id" in database.columns()["metrics"] else "run_name"
    runs = _runs(database, _RUNS[key])
    run = choose_run(path, runs, wanted)
    rows = [row for row in database.sound_rows(_ROWS[key], run.id) if isinstance(row[0], int)]
    records = []
    num_bad = 0
    for _, timestamp, step, metrics in sorted(rows, key=lambda row: row[0]):
        text = metrics.decode("utf-8", "replace") if isinstance(metrics, bytes) else str(metrics)
        record = parse_object(text)
        num_bad += record is None
        if record:
            own = {CALL_STEP: _number(step), "_timestamp": _seconds(timestamp)}
            records.append({**own, **record})
    table = Table()
    table.add_records(records)
    note_choice(table, run, runs)
    if num_bad:
        table.add_note(f"Rows whose metrics are not a JSON object, left out: {num_bad}.")
    prefer_steps_beside_loss(table)
    if is_by_hf(table, _HF_PREFIX):
        restore_hf_losses(table, _HF_PREFIX)
    return table


def _runs(database: Database, query: str) -> list[StoredRun]:
    """The runs, the one that was logged to last first."""
    rows = [row for row in database.sound_rows(query) if isinstance(row[2], int)]
    rows.sort(key=lambda row: -row[2])
    runs = {str(run): str(name) for run, name, _ in reversed(rows)}
    newest_first = dict.fromkeys(str(run) for run, _, _ in rows)
    return [StoredRun(id=run, name=runs[run]) for run in newest_first]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _seconds(timestamp: object) -> float | None:
    """A time as trackio writes it (ISO 8601), in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
