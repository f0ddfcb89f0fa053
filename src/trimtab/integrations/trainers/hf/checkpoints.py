"""The Trainer's own checkpoints: the last good one, and the one that it resumes from."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from trimtab.state.checkpoints.run_checkpoints import Checkpoints


def last_good_checkpoint(run_dir: str | Path) -> str | None:
    """The newest checkpoint of a run that is not bad; None if the run has none.

    For `trainer.train(resume_from_checkpoint=last_good_checkpoint(output_dir))`. With several ranks
    call it on all of them.
    """
    found = Checkpoints(run_dir=run_dir).find()
    return None if found is None else str(found)


def resumed_folder(trainer: Any) -> str | None:
    """The checkpoint that the Trainer resumes from; only its training loop knows it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("resume_from_checkpoint")
        if isinstance(found, str) and frame.f_locals.get("self") is trainer:
            return found
        frame = frame.f_back
    return None
