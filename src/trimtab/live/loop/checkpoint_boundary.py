"""CheckpointBoundary: a checkpoint that was asked for in a step is saved at its end.

In the middle of a step the weights may be those of the next step and the schedule still that of the
last one: so within `guard.steps` a save waits until the next step is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab.core.errors import ConfigError
from trimtab.live.shield import Shield, log

if TYPE_CHECKING:
    from trimtab.live.host.run_recorder import RunRecorder
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints


class CheckpointBoundary:
    """Saves checkpoints between two steps, and judges the earlier ones on the first rank."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        shield: Shield,
        recorder: Callable[[], RunRecorder | None],
        guard_state: Callable[[], dict[str, Any]],
    ) -> None:
        self._checkpoints = checkpoints
        self._shield = shield
        self._recorder = recorder
        self._guard_state = guard_state
        self.is_in_loop = False
        """Whether the user is in a step of `guard.steps`, which says when the step ends."""
        self.is_probed = False
        """Whether the step belongs to an experiment: its state is thrown away, so not saved."""
        self._is_wanted = False
        self._step: int | None = None
        if checkpoints is not None:
            checkpoints.attach(attempt=self._attempt, judge=self._judge)

    def request(self, step: int | None, next_step: int | None) -> None:
        """Save at the end of this step; at once if no loop says when that is."""
        if self._checkpoints is None:
            raise ConfigError("trimtab.watch was given no checkpoints; pass checkpoints=...")
        if self.is_probed:
            return
        self._is_wanted, self._step = True, step
        if not self.is_in_loop:
            self.save_if_wanted(next_step, None)

    def save_if_wanted(self, next_step: int | None, data_position: int | None) -> None:
        """The end of a step: save what was asked for in it."""
        checkpoints = self._checkpoints
        if not self._is_wanted or checkpoints is None:
            return
        self._is_wanted = False
        step = next_step if self._step is None else self._step
        if step is None:
            log.error(
                "trimtab: no checkpoint was saved: a guard that is switched off counts steps only "
                "in guard.steps; call guard.checkpoint(step=...) with the number of the next step"
            )
            return
        recorder = self._recorder()
        if recorder is not None:
            with self._shield.guarding("event"):
                recorder.event("checkpoint", step, {})  # the time that it takes is no stall
        checkpoints.save(step, data_position=data_position, guard_state=self._guard_state())

    def went_back(self, step: int) -> None:
        """The run has gone back to a step: a relaunch must not resume from what came after it."""
        if self._checkpoints is not None and not self._shield.is_down:
            self._checkpoints.wait()
            if self._recorder() is not None:
                with self._shield.guarding("rollback"):
                    self._checkpoints.went_back(step)

    def close(self) -> None:
        """Wait for what is being saved, and judge a last time."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
            self._judge()

    def _attempt(self) -> int:
        recorder = self._recorder()
        return 0 if recorder is None else recorder.attempt

    def _judge(self) -> None:
        recorder = self._recorder()
        if recorder is not None and self._checkpoints is not None and not self._shield.is_down:
            with self._shield.guarding("verdicts"):
                incidents = recorder.incidents  # judges what waits, which the history needs too
                self._checkpoints.judge(recorder.history, incidents)
