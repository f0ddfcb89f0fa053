"""Rehearsal: the run of an exercise, and each answer carried out on it, for real, to its end.

    0 ------- last good ---- onset ---- asked -------------- end
              |                         '- wait: the run that the learner is shown
              |- lower LR: once more as it was, and from `asked` on with a lower rate
              '- others: from here, or from the checkpoint that was named, with something changed

In one process a resumed run is the uninterrupted one, bit for bit. So an action at `asked` can be
carried out in a run that begins at a checkpoint and gets to `asked` once more.
"""

import contextlib
import copy
import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.signals import EVAL_LOSS
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.corpus.tokens import Progress
from trimtab.lab.practice.answers import Answer
from trimtab.lab.practice.exercise import Exercise, Home
from trimtab.lab.practice.scoring import Result, Stakes
from trimtab.lab.practice.treatment import (
    Treated,
    Treatment,
    discard_outliers,
    leave_alone,
    lower_rate,
    skip_batches,
)
from trimtab.lab.trainer.disturbance import Disturbance
from trimtab.lab.trainer.train import Outcome, train

_EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})
"""All signals at every step of the run that is shown."""

Steps = Callable[[int], None]
"""Told how many steps are done."""


class _Stopped(Exception):
    """The run was ended from outside, to be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an answer is carried out."""

    start: int
    """The checkpoint to begin from."""

    fault: Disturbance | None
    """What of the fault is still there."""

    treatment: Treatment
    paid_from: int
    """The first step that has to be computed because of the answer."""


def make_plan(answer: Answer, exercise: Exercise, fault: Disturbance) -> Plan:
    """What an answer means for a run."""
    good, asked, number = exercise.last_good, exercise.asked, answer.number or 0.0
    left = None if exercise.home is Home.ONCE else fault
    match answer.kind:
        case ActionKind.WAIT | ActionKind.STOP:
            return Plan(start=good, fault=fault, treatment=leave_alone, paid_from=asked)
        case ActionKind.LOWER_LR:
            lower = lower_rate(number, asked)
            return Plan(start=good, fault=fault, treatment=lower, paid_from=asked)
        case ActionKind.DISCARD:
            return Plan(start=good, fault=left, treatment=discard_outliers, paid_from=good)
        case ActionKind.SKIP:
            if left is not None and exercise.home is Home.BATCHES:
                left = _met_earlier(left, int(number), good)
            skip = skip_batches(int(number))
            return Plan(start=good, fault=left, treatment=skip, paid_from=good)
        case ActionKind.QUARANTINE:
            left = None if exercise.home is Home.BATCHES else left
            skip = skip_batches(asked - good)
            return Plan(start=good, fault=left, treatment=skip, paid_from=good)
        case ActionKind.ROLL_BACK:
            # What is still there does again what it did, so the run from a later checkpoint is the
            # run from the last good one; and not all of a fault is in a checkpoint.
            start = int(number) if left is None else min(int(number), good)
            return Plan(start=start, fault=left, treatment=leave_alone, paid_from=int(number))


def _met_earlier(fault: Disturbance, count: int, start: int) -> Disturbance | None:
    """A fault of some batches when the run jumps forward in its data; None if it is behind."""
    if fault.end is not None and fault.end - count <= start:
        return None
    return dataclasses.replace(fault, onset=max(fault.onset - count, 0))


class Rehearsal:
    """One exercise, trained on this machine."""

    def __init__(
        self,
        exercise: Exercise,
        run_dir: Path,
        *,
        cache_dir: Path | None = None,
        on_text: Progress | None = None,
        on_step: Steps | None = None,
    ) -> None:
        """Train the run that the learner is shown; it goes to its end, as if nobody did anything.

        Args:
            exercise: What to train.
            run_dir: The folder of that run.
            cache_dir: Where token files are kept; None is the user's cache.
            on_text: Told how far the text is prepared, if it has to be.
            on_step: Told how many steps of that run are done.
        """
        self._exercise = exercise
        self._run_dir = run_dir
        self._cache_dir = cache_dir
        self._fault = exercise.disturbance()
        torch.set_num_threads(1)  # the sums of two threads differ from those of one in the last bit
        outcome = self._train_shown(on_text, on_step)
        self.truth = copy.deepcopy(self._fault.truth)  # it goes on taking notes in other runs
        """What the disturbance really did."""
        self.run = read_journal(RunDirectory(run_dir)).block
        """The whole run, if nobody does anything."""
        self._loss_waited = outcome.eval_loss

    @property
    def shown(self) -> Block:
        """The records up to the step at which the learner is asked."""
        return self.run[: int((self.run.step < self._exercise.asked).sum())]

    @cached_property
    def stakes(self) -> Stakes:
        """What is to be had: the run is trained on from its last good checkpoint, with no fault."""
        start = self._exercise.last_good
        harmless = None if self._fault.is_fault else self._fault
        outcome, block = self._go_on(start, harmless, leave_alone)
        return Stakes(
            loss_before=float(block.column(EVAL_LOSS).values[0]),
            loss_mended=outcome.eval_loss,
            steps=self._exercise.steps - start,
        )

    def carry_out(self, answer: Answer) -> Result:
        """Do it, and let the run go on to its end."""
        if answer.kind is ActionKind.STOP:
            return Result(eval_loss=self._best_checkpoint(), steps=0)
        plan = make_plan(answer, self._exercise, self._fault)
        if answer.kind is ActionKind.WAIT:
            loss = self._loss_waited
        else:
            outcome, _ = self._go_on(plan.start, plan.fault, plan.treatment)
            loss = outcome.eval_loss
        return Result(eval_loss=loss, steps=self._exercise.steps - plan.paid_from)

    def _best_checkpoint(self) -> float:
        """Held-out loss of the best checkpoint that is there; there is an evaluation at each."""
        found = self.shown.column(EVAL_LOSS)
        # A resumed run is evaluated behind its resume, so what was saved there is not among them.
        return float(min([self.stakes.loss_before, *found.values[found.finite]]))

    def _train_shown(self, on_text: Progress | None, on_step: Steps | None) -> Outcome:
        exercise = self._exercise
        stop = exercise.onset if exercise.is_resumed else None

        def watch_steps(done: int, loss: Tensor) -> None:
            if on_step is not None:
                on_step(done)
            if done == stop:
                raise _Stopped

        def go(*, resume: bool) -> Outcome:
            return train(
                exercise.config(),
                self._run_dir,
                resume=resume,
                cache_dir=self._cache_dir,
                on_text=on_text,
                on_step=watch_steps,
                watching=_EVERY_STEP,
                disturbance=self._fault,
            )

        if stop is None:
            return go(resume=False)
        with contextlib.suppress(_Stopped):
            go(resume=False)
        return go(resume=True)

    def _go_on(
        self, start: int, fault: Disturbance | None, treatment: Treatment
    ) -> tuple[Outcome, Block]:
        """Train from a checkpoint to the end, in a folder that is gone afterwards."""
        exercise = self._exercise
        config = dataclasses.replace(
            exercise.config(), checkpoint_steps=exercise.steps, eval_steps=start
        )
        treated = Treated(
            onset=exercise.asked, severity=0.0, seed=0, treatment=treatment, fault=fault
        )
        name = f"step-{start:08d}"
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder)
            shutil.copytree(self._run_dir / "checkpoints" / name, run_dir / "checkpoints" / name)
            outcome = train(
                config,
                run_dir,
                resume=True,
                cache_dir=self._cache_dir,
                disturbance=treated,
            )
            return outcome, read_journal(RunDirectory(run_dir)).block
