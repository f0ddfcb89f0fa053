"""OneFile: a checkpoint as one `torch.save` file per rank."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class OneFile:
    """Writes and reads what a rank holds, in the format that most scripts use.

    Unlike torch's distributed checkpoints it can only be read by as many ranks as wrote it.
    """

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the state into an empty folder."""
        torch.save(state, folder / _name())

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read into the tensors of the state; trimtab has verified the file before."""
        _fill(state, torch.load(folder / _name(), weights_only=True))


def _name() -> str:
    return f"rank-{dist.get_rank() if dist.is_initialized() else 0}.pt"


def _fill(target: MutableMapping[str, Any], saved: dict[str, Any]) -> None:
    """Copy tensors into the live ones, so that the optimizer keeps its own; replace the rest."""
    for name, value in saved.items():
        present = target.get(name)
        if isinstance(present, MutableMapping):
            _fill(present, value)
        elif isinstance(present, torch.Tensor):
            with torch.no_grad():
                present.copy_(value)
        else:
            target[name] = value
