"""The Trainer's own checkpoints: verdicts for them, and what the guard needs to resume."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from trimtab.live.guard import Guard
from trimtab.restore.checkpoints.run_checkpoints import Checkpoints

GUARD_FILE = "trimtab-guard.pt"
"""In a checkpoint of the Trainer: what the gate has learnt, and where the data is."""


def last_good_checkpoint(run_dir: str | Path) -> str | None:
    """The newest checkpoint of a run that is not bad; None if the run has none.

    For `trainer.train(resume_from_checkpoint=last_good_checkpoint(output_dir))`. With several ranks
    call it on all of them.
    """
    found = Checkpoints(run_dir=run_dir).find()
    return None if found is None else str(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMark:
    """Where in the data a checkpoint was saved."""

    position: int
    """The position of the next batch."""
    skipped: int
    """Batches that had been left out before it; the Trainer does not know of them."""


def write_guard_file(folder: Path, guard_state: dict[str, Any], mark: DataMark) -> None:
    """Save what the guard knows beside what the Trainer has saved."""
    torch.save({"guard": guard_state, **asdict(mark)}, folder / GUARD_FILE)


def load_guard_file(trainer: Any, guard: Guard) -> DataMark | None:
    """Let the guard continue from the checkpoint that is resumed; None if it says nothing."""
    path = Path(resumed_folder(trainer) or "") / GUARD_FILE
    if not path.is_file():
        return None
    saved = torch.load(path, map_location="cpu", weights_only=True)
    guard.load_state_dict(saved["guard"])
    return DataMark(position=int(saved["position"]), skipped=int(saved["skipped"]))


def resumed_folder(trainer: Any) -> str | None:
    """The checkpoint that the Trainer resumes from; only its training loop knows it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("resume_from_checkpoint")
        if isinstance(found, str) and frame.f_locals.get("self") is trainer:
            return found
        frame = frame.f_back
    return None
