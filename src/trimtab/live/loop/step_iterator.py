"""StepIterator: the steps of a loop, asked for one at a time.

`guard.steps` is a loop over it. A trainer with a loop of its own asks it for the batches of its
next step instead: asking is the boundary between two steps, where a run goes back or is saved.
"""

from trimtab.live.loop.checkpoint_boundary import CheckpointBoundary
from trimtab.live.loop.state_journal import StateJournal
from trimtab.live.loop.step_loop import Step, StepLoop
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.recovery import Recovery


class StepIterator:
    """One pass over a loader, in steps; an epoch is one of them."""

    def __init__(
        self,
        loop: StepLoop,
        monitor: StepMonitor,
        boundary: CheckpointBoundary,
        states: StateJournal,
        recovery: Recovery | None,
    ) -> None:
        self.loop = loop
        self._monitor = monitor
        self._boundary = boundary
        self._states = states
        self._recovery = recovery
        self._open: Step | None = None
        """The step that the loop is in."""

    def next_step(self, size: int | None = None) -> Step | None:
        """End the step before and begin the next one; None at the end of the data.

        The run may have gone back before this returns: `number` of the step says where it is.
        `size` is how many batches the step has, if not `accumulate`.
        """
        step = self._probe_step()
        if step is None:
            step = self.loop.next_step(self._monitor.next_step, size)
            if step is not None:
                self._states.look_at_generators()
        if step is not None:
            self._open, self._boundary.is_in_loop = step, True
        return step

    def _probe_step(self) -> Step | None:
        """The boundary, and the next step of an experiment if one is under way."""
        recovery, open_step = self._recovery, self._open
        if recovery is None:
            self.end_step()
            return None
        if recovery.replay.is_running and open_step is not None:
            self._monitor.end_step(open_step.number)
        else:
            self.end_step()
            recovery.boundary(self.loop)
        step = recovery.replay.next_step()
        self._boundary.is_probed = step is not None
        if step is None:
            self._open, self._boundary.is_in_loop = None, False
        return step

    def end_step(self) -> None:
        """The step is over, whether or not an optimizer moved."""
        step = self._open
        if step is not None:
            self.leave()
            self._monitor.end_step(step.number)
            self._boundary.save_if_wanted(self._monitor.next_step, self.loop.source.position)

    def leave(self) -> None:
        """The loop was left, perhaps in the middle of a step or of an experiment."""
        if self._recovery is not None:
            self._recovery.replay.abandon()
        self._boundary.is_probed = False
        self._open, self._boundary.is_in_loop = None, False
