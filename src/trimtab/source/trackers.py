"""Runs of W&B, MLflow and HF's Trainer, as their packages hand them over."""

import importlib
import math
import sys
from collections.abc import Iterable
from typing import Any

from trimtab.core.errors import UnreadableLog
from trimtab.readers.table import Table
from trimtab.readers.trackers.points import Points
from trimtab.source.cells import has
from trimtab.source.tables import TableSource, history_source, records_table


def find_tracker(given: Any) -> TableSource | None:
    """Return the history of a tracker's run; None if it is none, UnreadableLog if it has none."""
    kind = type(given).__name__
    state = getattr(given, "__dict__", {}).get("state", given)
    if has(state, "log_history"):
        return history_source(f"log_history of {kind}", state.log_history)
    if has(given, "scan_history"):
        name = f"W&B run {given.name}"
        return TableSource(
            name=name,
            load=lambda wanted: records_table(given.scan_history(), wanted),
            format="wandb",
        )
    if has(given, "sync_dir", "log", "finish"):
        raise UnreadableLog(
            "a W&B run that is being logged to cannot be asked for its history; call finish(), "
            f"then give its folder: {given.sync_dir}"
        )
    if has(given, "info", "data") and has(given.info, "run_id") and has(given.data, "metrics"):
        name = f"MLflow run {given.info.run_id}"
        return TableSource(name=name, load=lambda wanted: _from_mlflow(given), format="mlflow")
    return None


def _from_mlflow(run: Any) -> Table:
    """Ask the tracking server for every value of a run: the object holds the last ones only."""
    try:
        client = importlib.import_module("mlflow").MlflowClient()
    except ImportError:
        raise UnreadableLog(
            "it holds only the last value of each metric, and mlflow, which fetches the others, is "
            "not installed; give mlflow.db or the folder mlruns"
        ) from None
    # The object is as old as the moment it was fetched: of an active run, it has no metrics at all.
    name = run.info.run_id
    metrics: Iterable[str] = client.get_run(name).data.metrics
    values = [value for metric in metrics for value in client.get_metric_history(name, metric)]
    points = Points()
    for value in sorted(values, key=lambda value: value.timestamp):
        # MLflow's database writes the infinities as the largest numbers.
        is_infinite = abs(value.value) >= sys.float_info.max
        number = math.copysign(math.inf, value.value) if is_infinite else float(value.value)
        points.add(value.key, int(value.step), number, value.timestamp / 1000)
    if not len(points):
        raise UnreadableLog("it has no metrics; check that the run logged anything")
    return points.to_table()
