"""The log formats that trimtab reads itself."""

from collections.abc import Mapping

from trimtab.readers.csv_log import CSV, LIGHTNING
from trimtab.readers.formats import Format
from trimtab.readers.json_log import GOLDEN, HF, JSON, JSONL
from trimtab.readers.text.corrected import (
    DEEPSPEED,
    FAIRSEQ,
    MEGATRON,
    MLPERF,
    MODDED_NANOGPT,
    NEMO,
)
from trimtab.readers.text.grammars import LLMC, NANOCHAT, NANOGPT, OLMO, TORCHTITAN
from trimtab.readers.trackers.databases import SQLITE
from trimtab.readers.trackers.mlflow_files import MLFLOW
from trimtab.readers.trackers.parquet import PARQUET
from trimtab.readers.trackers.tensorboard import TENSORBOARD
from trimtab.readers.trackers.wandb import WANDB, WANDB_CSV

# Trackers recognise their files by a mark.
_TRACKERS = (HF, GOLDEN, TENSORBOARD, WANDB, SQLITE, MLFLOW, LIGHTNING, PARQUET, WANDB_CSV)

# MLPerf first and DeepSpeed last: both appear among the lines of other trainers.
_TEXT = (
    *(MLPERF, MEGATRON, NEMO, TORCHTITAN, OLMO, FAIRSEQ),
    *(NANOCHAT, LLMC, NANOGPT, MODDED_NANOGPT, DEEPSPEED),
)

FORMATS: Mapping[str, Format] = {
    format.name: format for format in (*_TRACKERS, JSON, JSONL, *_TEXT, CSV)
}
"""By name, in the order in which they are tried."""
