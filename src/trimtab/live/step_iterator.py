"""What happens between two steps of a loop: batches, checkpoints, facts for the resume audit.

`StepIterator` gives the steps of a loop one at a time: `guard.steps` is a loop over it, and a
trainer with a loop of its own asks it for the batches of its next step. Asking is the boundary
between two steps, where a run is saved. In the middle of a step the weights may be
those of the next step and the schedule still that of the last one, so a checkpoint that was asked
for in a step waits for its end (`CheckpointBoundary`). `StateJournal` journals what the state is
like whenever it is saved, so that a resume can be audited.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab.core.errors import ConfigError
from trimtab.journal.resume.facts import DATA_POSITION, STATE_SAVED, Facts
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.step_loop import Step, StepLoop
from trimtab.live.shield import Shield, log

if TYPE_CHECKING:
    from trimtab.live.host.no_recorder import NoRecorder
    from trimtab.live.host.recorder import Recorder
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints


class CheckpointBoundary:
    """Saves checkpoints between two steps, once the earlier ones are judged."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        shield: Shield,
        recorder: Callable[[], Recorder | NoRecorder],
        guard_state: Callable[[], dict[str, Any]],
        trains: Callable[[], bool] = lambda: False,
    ) -> None:
        self._checkpoints = checkpoints
        self._shield = shield
        self._recorder = recorder
        self._guard_state = guard_state
        self._is_in_step = False
        """Whether the user is in a step of `guard.steps`, which says when the step ends."""
        self._is_wanted = False
        self._step: int | None = None
        if checkpoints is not None:
            checkpoints.attach(attempt=self._attempt, judge=self._judge, trains=trains)

    def enter_step(self) -> None:
        self._is_in_step = True

    def leave_step(self) -> None:
        self._is_in_step = False

    def request(self, step: int | None, next_step: int | None, *, if_due: bool) -> None:
        """Save at the end of this step; at once if no loop says when that is."""
        if self._checkpoints is None:
            raise ConfigError("trimtab.watch was given no checkpoints; pass checkpoints=...")
        if if_due:
            at = next_step if step is None else step
            if self._is_in_step or at is None or not self._checkpoints.cadence.is_due(at):
                return  # at the end of a step of the loop it is asked anyway
        self._is_wanted, self._step = True, step
        if not self._is_in_step:
            self.save_if_wanted(next_step, None)

    def save_if_wanted(self, next_step: int | None, data_position: int | None) -> None:
        """The end of a step: save what was asked for in it, or if it is time."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return
        if not self._is_wanted:
            if data_position is None or next_step is None:
                return  # not the end of a step of `guard.steps`
            is_due = False
            with self._shield.guarding("cadence"):
                is_due = checkpoints.cadence.is_due(next_step)
            if not is_due:
                return
            self._step = None
        self._is_wanted = False
        step = next_step if self._step is None else self._step
        if step is None:
            log.error(
                "trimtab: no checkpoint was saved: a guard that is off does not count; call "
                "guard.checkpoint(step=...) with the next step"
            )
            return
        state: dict[str, Any] = {}
        with self._shield.guarding("event"):
            self._recorder().event("checkpoint", step, {})  # the time that it takes is no stall
            state = self._guard_state()
        try:
            checkpoints.save(step, data_position=data_position, guard_state=state)
        except ConfigError:  # nothing to save was named
            raise
        except Exception as error:
            self._shield.catch("save", error)

    def close(self) -> None:
        """Wait for what is being saved, and take over the last verdicts."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
            with self._shield.guarding("verdicts"):
                self._checkpoints.read_verdicts()

    def _attempt(self) -> int:
        return self._recorder().attempt

    def _judge(self) -> bool | None:
        """Return whether the verdicts are of this moment; where nobody records, they are."""
        is_judged: bool | None = False
        if not self._shield.is_down:
            with self._shield.guarding("verdicts"):
                is_judged = self._recorder().catch_up()
        return is_judged


class StateJournal:
    """Collects the facts of a saved state, for the journal and for the user's checkpoint."""

    def __init__(self, monitor: StepMonitor) -> None:
        self._monitor = monitor
        self._saved: int | None = None
        """The step whose state was journalled last."""

    def save(self, *, with_generators: bool) -> str | None:
        """What the state is like now, as text, also journalled; None if it cannot be found out."""
        monitor = self._monitor
        text = None
        if not monitor.shields.resume.is_down:
            with monitor.shields.resume.guarding("state"):
                self._saved = monitor.next_step
                facts = monitor.resume.collect(self._saved, with_generators=with_generators)
                self._journal(facts)
                text = json.dumps(facts)
        return text

    def load(self, text: str) -> int | None:
        """Take the facts that came with a checkpoint; returns the data position in them."""
        position = None
        with self._monitor.shields.resume.guarding("load_state_dict"):
            facts = self._monitor.resume.load(text)
            if DATA_POSITION in facts:
                position = int(facts[DATA_POSITION])
        return position

    def close(self) -> None:
        """Weights may have been exchanged since the last step; where the data is, is known."""
        monitor = self._monitor
        if monitor.resume.loop is not None and self._saved != monitor.next_step:
            with monitor.shields.resume.guarding("close"):
                self._journal(monitor.resume.collect_data())

    def _journal(self, facts: Facts) -> None:
        monitor = self._monitor
        if monitor.is_watching:
            monitor.recorder.event(STATE_SAVED, monitor.next_step, {"state": facts})


class NoMonitor:
    """Counts the steps of a loop that is not watched."""

    def __init__(self, first_step: int) -> None:
        self.next_step = self.loop_step = first_step
        self.num_losses = 0

    def entrance(self, operation: str, inside: Callable[..., Any], /, *args: Any, **kw: Any) -> Any:
        """Call it: what runs in here does nothing that can fail."""
        return inside(*args, **kw)

    def count_loss(self, loss: Any) -> None:
        self.num_losses += int(loss is not None)

    def continue_loop(self, step: int) -> None:
        self.next_step = self.loop_step = step

    def note_generators(self) -> None: ...
    def begin_loop(self, loop: StepLoop, *, position_is_given: bool) -> None: ...
    def begin_loop_step(self, loop: StepLoop) -> None: ...
    def end_step(self, number: int) -> None: ...


class StepIterator:
    """One pass over a loader, in steps; an epoch is one of them."""

    def __init__(
        self, loop: StepLoop, monitor: StepMonitor | NoMonitor, boundary: CheckpointBoundary
    ) -> None:
        self.loop = loop
        self._monitor = monitor
        self._boundary = boundary
        self._open: Step | None = None
        """The step that the loop is in."""
        self._number = monitor.loop_step
        """Of the next step of this loop; two loops may be gone through at once."""
        self._next_update = self._num_losses = 0
        """What the monitor had counted when the open step began."""

    def next_step(self, size: int | None = None) -> Step | None:
        """End the step before and begin the next one; None at the end of the data.

        `size` is how many batches the step has, if not `accumulate`.
        """
        self.end_step()
        step = self.loop.next_step(self._number, size)  # what the loader raises is the user's
        if step is not None:
            self._number += 1
            self._open = step
            self._monitor.entrance("guard.steps", self._begin_step)
        return step

    def end_step(self) -> None:
        """The step is over, whether or not an optimizer moved."""
        if self._open is not None:
            self.leave()
            self._monitor.entrance("guard.steps", self._end_step)
            self._boundary.save_if_wanted(self._monitor.next_step, self.loop.source.position)

    def _begin_step(self) -> None:
        monitor = self._monitor
        self._boundary.enter_step()
        self._next_update, self._num_losses = monitor.next_step, monitor.num_losses
        monitor.begin_loop_step(self.loop)

    def _end_step(self) -> None:
        monitor = self._monitor
        if monitor.num_losses > self._num_losses:  # else it was an evaluation
            monitor.continue_loop(max(monitor.loop_step, self._number))
        monitor.end_step(self._next_update)

    def leave(self) -> None:
        """The loop was left, perhaps in the middle of a step."""
        self._open = None
        self._monitor.entrance("guard.steps", self._boundary.leave_step)
