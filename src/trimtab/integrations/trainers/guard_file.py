"""What the guard needs to resume, as a file in a checkpoint of the trainer."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trimtab.live.guard import Guard

GUARD_FILE = "trimtab-guard.pt"
"""In a checkpoint of the trainer: what the gate has learnt, and where the data is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMark:
    """Where in the data a checkpoint was saved."""

    position: int
    """The position of the next batch."""
    skipped: int
    """Batches that had been left out before it; the trainer does not know of them."""


def write_guard_file(folder: Path, guard_state: dict[str, Any], mark: DataMark) -> None:
    """Save what the guard knows beside what the trainer has saved."""
    torch.save({"guard": guard_state, **asdict(mark)}, folder / GUARD_FILE)


def load_guard_file(folder: Path, guard: Guard) -> DataMark | None:
    """Let the guard continue from a checkpoint; None if the file is not there."""
    path = folder / GUARD_FILE
    if not path.is_file():
        return None
    saved = torch.load(path, map_location="cpu", weights_only=True)
    guard.load_state_dict(saved["guard"])
    return DataMark(position=int(saved["position"]), skipped=int(saved["skipped"]))
