"""What experiment trackers leave on disk: one file per format, and the parts that they share."""

from collections.abc import Mapping

from trimtab.readers.formats import LogFormat, Reader
from trimtab.readers.trackers.databases.sqlite_log import SQLITE
from trimtab.readers.trackers.golden_values import GOLDEN
from trimtab.readers.trackers.hf_state import HF
from trimtab.readers.trackers.lightning import LIGHTNING
from trimtab.readers.trackers.mlflow_files import MLFLOW
from trimtab.readers.trackers.parquet import PARQUET
from trimtab.readers.trackers.tensorboard.reader import TENSORBOARD
from trimtab.readers.trackers.wandb.csv_export import WANDB_CSV
from trimtab.readers.trackers.wandb.run_file import WANDB

TRACKER_READERS: Mapping[LogFormat, Reader] = {
    LogFormat.HF: HF,
    LogFormat.GOLDEN: GOLDEN,
    LogFormat.TENSORBOARD: TENSORBOARD,
    LogFormat.WANDB: WANDB,
    LogFormat.SQLITE: SQLITE,
    LogFormat.MLFLOW: MLFLOW,
    LogFormat.LIGHTNING: LIGHTNING,
    LogFormat.PARQUET: PARQUET,
    LogFormat.WANDB_CSV: WANDB_CSV,
}
"""In the order in which they are tried: each knows its own files by a mark."""
