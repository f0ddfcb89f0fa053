"""What a log format has to bring along: one file per format, one `Reader` in it.

A new format is a member of `LogFormat`, a file like `csv_log.py`, and a line in `open_log.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trimtab.readers.lines import Progress
from trimtab.readers.table import Table


class LogFormat(StrEnum):
    """The formats that can be read."""

    CSV = "csv"
    JSONL = "jsonl"
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
