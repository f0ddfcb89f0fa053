"""What a log format has to bring along: one file per format, one `Reader` in it.

A new format is a member of `LogFormat`, a file like `csv_log.py`, and a line in `open_log.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trimtab.readers.lines import Progress
from trimtab.readers.table import Table


class LogFormat(StrEnum):
    """The formats that can be read."""

    CSV = "csv"
    JSONL = "jsonl"
    HF = "hf"
    GOLDEN = "megatron-golden"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    WANDB_CSV = "wandb-csv"
    SQLITE = "sqlite"
    MLFLOW = "mlflow"
    LIGHTNING = "lightning"
    PARQUET = "parquet"
    MEGATRON = "megatron"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    OLMO = "olmo"
    FAIRSEQ = "fairseq"
    NANOCHAT = "nanochat"
    LLMC = "llm.c"
    NANOGPT = "nanogpt"
    MODDED_NANOGPT = "modded-nanogpt"
    DEEPSPEED = "deepspeed"
    MLPERF = "mlperf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How one format is told from the others, and how it is read."""

    description: str
    """What a file of this format looks like, in a few words."""
    suffixes: tuple[str, ...]
    """Tried only if no format is recognised by its content."""
    recognises: Callable[[bytes], bool]
    """Whether a file that begins with these bytes is of this format."""
    read: Callable[[Path, Progress], Table]
    """Read the file; raises UnreadableLog if there is no row in it, and lets OSError pass."""
    binary: bool = False
    """Whether its first bytes are a mark that no text and no other format begins with."""
    logs_among: Callable[[Sequence[Path]], Sequence[Path]] | None = None
    """Which of the files under a folder, or folders around them, are logs of this format, the one
    to read first; None if such logs are only given by name."""
    read_run: Callable[[Path, str, Progress], Table] | None = None
    """Read one run of a file that holds several, by its name or id."""
