"""Replay: steps are done again for an experiment, by the user's own loop, and leave no trace.

    boundary --> snapshot of the present --> an earlier snapshot --> steps, by the user's loop
                                               ^                       |
                                               `--- the next pass <----+
             <-- the present, random numbers last <-- answer <---------'

While it runs, nothing is journalled, judged or counted: numbers go to the experiment. All ranks do
the same passes, because an experiment sees only numbers that were added up over ranks.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from trimtab.core.config import ProbesConfig
from trimtab.core.errors import RestoreError
from trimtab.live.host.step_note import StepNote, StepState
from trimtab.live.loop.step_loop import Step, StepLoop
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.local_gradients import LocalGradients
from trimtab.live.measure.row_losses import RowLosses
from trimtab.live.measure.step_meter import UserSignals
from trimtab.live.recover.experiments.rank_exchange import gather, with_rank_grads
from trimtab.live.recover.experiments.replay_step import change_step, distances, step_result
from trimtab.live.recover.experiments.running import Running
from trimtab.live.recover.returning import half_way, return_to
from trimtab.live.recover.snapshots import Snapshots
from trimtab.live.shield import log
from trimtab.probes.passes import (
    Answer,
    Question,
    Result,
    open_answer,
)
from trimtab.probes.registry import EXPERIMENTS
from trimtab.probes.rows import num_tokens
from trimtab.state.batches import num_rows
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState

_STOPPED = {
    1: "it took longer than probes.max_seconds",
    2: "it took more steps than probes.max_steps",
    3: "the training loop changes its batches in place, so a step cannot be done again",
    4: "the guard was closed",
}
"""Why an experiment is given up; the largest number of all ranks counts."""


class Replay:
    """Runs experiments, one at a time."""

    def __init__(
        self,
        state: TrainingState,
        monitor: StepMonitor,
        snapshots: Snapshots,
        tape: BatchTape,
        config: ProbesConfig,
        local_gradients: LocalGradients,
        settle: Callable[[], None] | None,
    ) -> None:
        self._state = state
        self._monitor = monitor
        self._snapshots = snapshots
        self._tape = tape
        self._config = config
        self._local_gradients = local_gradients
        self._settle = settle
        """Waits for a checkpoint that is being written: a replay would change what it reads."""
        self.load_proven: Callable[[int], int | None] | None = None
        """Loads the weights of the newest proven checkpoint up to a step, and returns its step."""
        self._running: Running | None = None
        self._accumulate = 1
        self.on_answer: Callable[[Question, Answer, dict[str, Any]], None] = lambda *parts: None
        """Called on every rank with the answer and what it has cost."""

    @property
    def is_running(self) -> bool:
        """Whether the loop's steps belong to an experiment."""
        return self._running is not None

    def start_ordered(self, questions: Sequence[Question | None], loop: StepLoop) -> None:
        """Begin the first experiment that was ordered: the loop's next steps belong to it."""
        question = next((question for question in questions if question is not None), None)
        if question is not None:
            if self._settle is not None:
                self._settle()
            self.start(question, loop)

    def start(self, question: Question, loop: StepLoop) -> None:
        """Begin an experiment at a boundary; all ranks come here together."""
        question = dataclasses.replace(
            question,
            slots=tuple(slot.step for slot in self._snapshots.ring.kept),
            accumulate=loop.accumulate,
            present=self._monitor.next_step,
            world=self._monitor.sync.ranks.world,
            max_steps=self._config.max_steps,
        )
        present = Snapshot()
        problem = self._problem(question, loop)
        if not problem:
            try:
                present.take(self._state, self._monitor.next_step)
            except Exception as error:  # most likely the memory
                problem = f"the present state could not be copied ({error})"
        ranks = self._monitor.sync.ranks
        if ranks.world > 1 and ranks.agree([int(bool(problem))])[0]:
            problem = problem or "a different rank cannot do the steps again"
        if problem:
            log.info("trimtab: no experiment %s: %s", question.experiment, problem)
            self.on_answer(
                question,
                open_answer(question, problem),
                {"steps": 0, "seconds": 0.0, "refused": True},
            )
            return
        monitor = self._monitor
        self._accumulate = loop.accumulate
        self._running = Running(
            question=question,
            experiment=EXPERIMENTS[question.experiment](question),
            present=present,
            bookmark=self._tape.bookmark(),
            user=monitor.facts.user,
            row_losses=monitor.facts.row_losses,
            armed_local=ranks.world > 1 and not self._local_gradients.is_armed,
        )
        monitor.facts.user = UserSignals(monitor.meter.device)
        monitor.facts.row_losses = RowLosses()
        monitor.slow.disarm()
        monitor.slow.is_paused = True
        monitor.sync.mute(self._take)
        if self._running.armed_local:
            self._local_gradients.arm()
        self._advance(self._running, None)

    def next_step(self) -> Step | None:
        """The next step of the experiment; None when it is over and the present is back."""
        while self._running is not None:
            running = self._running
            running.changes.close()
            why = self._why_stop(running)
            if why is not None:
                self._finish(running, open_answer(running.question, why))
            elif self._monitor.next_step > running.current.last:
                self._advance(running, self._result(running))
            else:
                step = self._serve(running)
                if step is not None:
                    return step
                self._finish(running, open_answer(running.question, "the data has ended"))
        return None

    def abandon(self) -> None:
        """The loop was left in the middle of an experiment: put the present back."""
        running = self._running
        if running is not None:
            self._finish(running, open_answer(running.question, "the training loop was left"))

    # One experiment.

    def _problem(self, question: Question, loop: StepLoop) -> str:
        monitor = self._monitor
        if question.experiment not in EXPERIMENTS:
            return "it is not known"
        if not loop.can_replay:
            return "the trainer counts its own steps, so they cannot be done again"
        if self._tape.changed is not None:
            return _STOPPED[3]
        if monitor.holds.is_active or monitor.holds.names:
            return "options are held, which they were not at the snapshots"
        if not monitor.is_between_steps or not monitor.is_watching:
            return "the loop is not between two steps"
        return self._snapshots.find(question.step)[1]

    def _why_stop(self, running: Running) -> str | None:
        sync = self._monitor.sync
        if sync.ranks.has_parted:
            return "a rank has left"
        code = 0
        if time.monotonic() - running.started > self._config.max_seconds:
            code = 1
        is_complete = self._monitor.next_step > running.current.last
        if running.num_steps >= self._config.max_steps and not is_complete:
            code = 2
        if self._tape.changed is not None:
            code = 3
        if sync.is_closed:
            code = 4
        if sync.ranks.world > 1:
            code = sync.ranks.agree([code])[0]
        return _STOPPED.get(code)

    def _advance(self, running: Running, result: Result | None) -> None:
        """Let the experiment look at a pass, and begin the next one."""
        try:
            if result is None:
                running.current = next(running.experiment)
            else:
                running.current = running.experiment.send(result)
        except StopIteration as ended:
            self._finish(running, ended.value)
        except Exception as error:  # a bug of an experiment costs the experiment alone
            log.exception("trimtab: the experiment %s failed", running.question.experiment)
            self._finish(running, open_answer(running.question, f"it failed: {error}"))
        else:
            self._begin_pass(running)

    def _begin_pass(self, running: Running) -> None:
        current = running.current
        running.results, running.found, running.local_norms = [], {}, {}
        bookmark = running.at_step_bookmark
        if current.starts_at_step and bookmark is not None:
            self._return(running.at_step, bookmark.position)
            running.at_step.put_random_state()
            return
        slot, problem = self._snapshots.find(current.first)
        if slot is None or slot.step > current.last:
            why = problem or "there is nothing to do again"
            self._finish(running, open_answer(running.question, why))
            return
        self._return(slot, self._snapshots.marks[slot.step].position)
        if current.under_proven and not self._put_proven(running, slot):
            return
        self._tape.skip_only(running.bookmark.skipped | set(current.skip))
        if current.hold:
            self._monitor.holds.add(current.hold, slot)
        self._monitor.holds.lower_rate(current.lr_factor, slot.step)
        slot.put_random_state()

    def _put_proven(self, running: Running, slot: Snapshot) -> bool:
        """Put in the weights of the last proven checkpoint, if any; whether the pass can begin."""
        if self.load_proven is None or slot.step == running.proven.step:
            if running.proven.step >= 0:
                self._return(running.proven, self._snapshots.marks[slot.step].position)
            return True
        try:
            running.proven_step = self.load_proven(running.question.step)
        except RestoreError as error:  # on all ranks
            self._finish(running, open_answer(running.question, str(error)))
            return False
        running.proven.take(self._state, slot.step)
        return True

    def _serve(self, running: Running) -> Step | None:
        number, current = self._monitor.next_step, running.current
        is_usual = current.lr_factor == 1.0 and running.at_step_bookmark is None
        if number == running.question.step and is_usual:
            running.at_step.take(self._state, number)
            running.at_step_bookmark = self._tape.bookmark()
        step = Step(number=number, source=self._tape, size=self._accumulate, is_probe=True)
        if not step.load():
            return None
        self._monitor.holds.begin_step(number)
        running.num_steps += 1
        running.warn_if_late(self._config.max_seconds)
        if number == current.last:
            running.shape = num_rows(step.batches[0]), num_tokens(step.batches[0])
            group = self._monitor.sync.ranks.group
            change_step(step, current, self._tape, self._state.model, group, running)
        return step

    def _take(self, note: StepNote, head: dict[str, float], report: dict[str, float]) -> None:
        """The numbers of a step that was done again."""
        running = self._running
        if running is None or any(one.step == note.step for one in running.results):
            return  # one more optimizer of the same step
        was_skipped = note.state in (StepState.SKIPPED, StepState.OVERFLOW)
        norm = None if was_skipped else self._local_gradients.read_last()
        if norm is not None:
            running.local_norms[note.step] = norm
        running.results.append(step_result(note.step, head, report, was_skipped=was_skipped))

    def _result(self, running: Running) -> Result:
        current = running.current
        ranks = self._monitor.sync.ranks
        group, micro = ranks.group, self._accumulate
        rows, tokens = running.shape
        if current.rows is not None and ranks.world > 1:
            rows, tokens = ranks.agree([rows, tokens])  # batches may differ between ranks
        found = gather(group, running.found) if current.finds_nonfinite else []
        apart = []
        if current.compares_weights:
            apart = gather(group, distances(self._state, running.present))
        return Result(
            steps=with_rank_grads(group, running.results, running.local_norms),
            num_rows=(micro, rows),
            num_tokens=tokens,
            nonfinite=tuple(part for part in found if part),
            proven_step=running.proven_step,
            distances=tuple(apart),
        )

    def _return(self, slot: Snapshot, position: int) -> None:
        num_updates = self._monitor.slow.num_updates
        try:
            return_to(
                slot,
                self._state,
                self._monitor,
                self._tape,
                position=position,
                num_updates=num_updates,
            )
        except Exception as error:
            raise half_way(slot, error) from error

    def _finish(self, running: Running, answer: Answer) -> None:
        """Put the present back, random numbers last, and report."""
        self._running = None
        monitor, present = self._monitor, running.present
        running.changes.close()
        running.experiment.close()
        if running.armed_local:
            self._local_gradients.disarm()
        monitor.slow.is_paused = False
        self._return(present, running.bookmark.position)
        self._tape.return_to(running.bookmark)
        monitor.facts.user, monitor.facts.row_losses = running.user, running.row_losses
        monitor.holds.release(monitor.holds.names)  # none was held before
        monitor.holds.lower_rate(1.0, present.step)
        monitor.holds.begin_step(present.step)
        monitor.sync.unmute()
        cost = {"steps": running.num_steps, "seconds": time.monotonic() - running.started}
        self.on_answer(running.question, answer, cost)
        present.put_random_state()
