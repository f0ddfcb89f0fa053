"""Running: an experiment that is under way, and what must be put back after it."""

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from trimtab.live.measure.row_losses import RowLosses
from trimtab.live.measure.step_meter import UserSignals
from trimtab.live.shield import log
from trimtab.probes.passes import Experiment, Pass, Question, StepResult
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import Bookmark


@dataclass(slots=True, kw_only=True)
class Running:
    """One experiment, and what must be put back after it."""

    question: Question
    experiment: Experiment
    present: Snapshot
    bookmark: Bookmark
    user: UserSignals
    row_losses: RowLosses
    armed_local: bool
    started: float = field(default_factory=time.monotonic)
    current: Pass = field(default_factory=lambda: Pass(first=0, last=-1))
    results: list[StepResult] = field(default_factory=list)
    shape: tuple[int, int] = (0, 0)
    """Rows of a batch and tokens of a row."""
    num_steps: int = 0
    at_step: Snapshot = field(default_factory=Snapshot)
    """The state before the step in question, once a pass has come there."""
    at_step_bookmark: Bookmark | None = None
    changes: ExitStack = field(default_factory=ExitStack)
    """What is different in the present step."""
    found: dict[str, Any] = field(default_factory=dict)
    """Where this rank has seen the first value that is not finite."""
    proven: Snapshot = field(default_factory=Snapshot)
    """The state with the weights of the last proven checkpoint, once a pass has loaded them."""
    proven_step: int | None = None
    """The step of the checkpoint whose weights the pass uses."""
    local_norms: dict[int, float] = field(default_factory=dict)
    """The gradient norm that this rank itself computed, by step."""

    def warn_if_late(self, seconds: float) -> None:
        """Log it if the present step takes this long: no thread can end a step of the user's loop
        and leave the loop as it is."""
        timer = threading.Timer(seconds, self._warn, (seconds,))
        timer.daemon = True
        timer.start()
        self.changes.callback(timer.cancel)

    def _warn(self, seconds: float) -> None:
        log.warning(
            "trimtab: a step of the experiment %s has taken %.0f s (probes.max_seconds) and cannot "
            "be interrupted; if it hangs, end the process: a relaunched run continues as if there "
            "had been no experiment",
            self.question.experiment,
            seconds,
        )
