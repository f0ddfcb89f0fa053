"""What experiment trackers write: one file or folder per format, and the parts that they share."""

from trimtab.readers.formats import Format
from trimtab.readers.trackers.databases.sqlite_log import SQLITE
from trimtab.readers.trackers.golden_values import GOLDEN
from trimtab.readers.trackers.hf_state import HF
from trimtab.readers.trackers.lightning import LIGHTNING
from trimtab.readers.trackers.mlflow_files import MLFLOW
from trimtab.readers.trackers.parquet import PARQUET
from trimtab.readers.trackers.tensorboard.reader import TENSORBOARD
from trimtab.readers.trackers.wandb.csv_export import WANDB_CSV
from trimtab.readers.trackers.wandb.run_file import WANDB

TRACKER_FORMATS: tuple[Format, ...] = (
    HF,
    GOLDEN,
    TENSORBOARD,
    WANDB,
    SQLITE,
    MLFLOW,
    LIGHTNING,
    PARQUET,
    WANDB_CSV,
)
"""In the order in which they are tried: each recognises its files by a mark."""
