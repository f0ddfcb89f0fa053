"""Checkpointer: how a run's state is written to a folder and read back. An extension point.

Trimtab comes with one for torch's distributed checkpoints (`trimtab.restore.checkpoints.dcp`). A
different one is any object with these two methods, given as an argument or found by the entry point
`trimtab.checkpointers`.
"""

from pathlib import Path
from typing import Any, Protocol


class Checkpointer(Protocol):
    """Writes and reads one checkpoint. Both methods are called on all ranks at the same step."""

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write `state`, a nested dict of tensors and plain values, into an empty folder."""
        ...

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read the folder into the tensors of `state`, and replace its plain values."""
        ...
