"""Replay: trains the run of an exercise, then each answer from a checkpoint to the end.

    0 ------- last good ---- onset ---- decision ----------- end
              |                         '- wait: the run that the learner is shown
              |- lower LR: the same again, and from the decision on with a lower learning rate
              '- others: from here, or from the checkpoint of the answer, with a remedy

In one process a resumed run is bit-identical to an uninterrupted one. So an action at the decision
step can be carried out in a run that starts at a checkpoint and reaches that step again.
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
from trimtab.lab.practice.exercise import Exercise, Origin
from trimtab.lab.practice.remedies import (
    Remedy,
    RemedyAndFault,
    discard_outliers,
    lower_lr,
    no_remedy,
    skip_batches,
)
from trimtab.lab.practice.scoring import Result, Stakes
from trimtab.lab.trainer.intervention import Intervention
from trimtab.lab.trainer.train import Outcome, train

_EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})
"""All signals at every step of the run that is shown."""

OnStep = Callable[[int], None]
"""Takes the number of steps done."""


class _Stopped(Exception):
    """The run was stopped in order to be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an answer is carried out."""

    start: int
    """The checkpoint to start from."""

    fault: Intervention | None
    """The fault as it acts in the new run; None if it no longer does."""

    remedy: Remedy
    cost_from: int
    """The first step whose computation counts as a cost of the answer."""


def make_plan(answer: Answer, exercise: Exercise, fault: Intervention) -> Plan:
    """How to carry out an answer."""
    good, decision, number = exercise.last_good, exercise.decision_step, answer.number or 0.0
    left = None if exercise.origin is Origin.ONCE else fault
    match answer.kind:
        case ActionKind.WAIT | ActionKind.STOP:
            return Plan(start=good, fault=fault, remedy=no_remedy, cost_from=decision)
        case ActionKind.LOWER_LR:
            lower = lower_lr(number, decision)
            return Plan(start=good, fault=fault, remedy=lower, cost_from=decision)
        case ActionKind.DISCARD:
            return Plan(start=good, fault=left, remedy=discard_outliers, cost_from=good)
        case ActionKind.SKIP:
            if left is not None and exercise.origin is Origin.BATCHES:
                left = _after_skip(left, int(number), good)
            skip = skip_batches(int(number))
            return Plan(start=good, fault=left, remedy=skip, cost_from=good)
        case ActionKind.QUARANTINE:
            left = None if exercise.origin is Origin.BATCHES else left
            skip = skip_batches(decision - good)
            return Plan(start=good, fault=left, remedy=skip, cost_from=good)
        case ActionKind.ROLL_BACK:
            # A fault that is still active acts the same way again, so a run from a later checkpoint
            # equals the one from the last good checkpoint. Start from the latter, because part of
            # a fault's state is not in the checkpoint.
            start = int(number) if left is None else min(int(number), good)
            return Plan(start=start, fault=left, remedy=no_remedy, cost_from=int(number))


def _after_skip(fault: Intervention, count: int, start: int) -> Intervention | None:
    """A fault in some batches, moved earlier by the skipped ones; None if all were skipped."""
    if fault.end is not None and fault.end - count <= start:
        return None
    return dataclasses.replace(fault, onset=max(fault.onset - count, 0))


class Replay:
    """One exercise, trained on this machine."""

    def __init__(
        self,
        exercise: Exercise,
        run_dir: Path,
        *,
        cache_dir: Path | None = None,
        on_text: Progress | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        """Train the run that the learner is shown to its end, without any action.

        Args:
            exercise: What to train.
            run_dir: The folder of that run.
            cache_dir: Where token files are kept; None is the user's cache.
            on_text: Called with the progress of tokenizing, if the corpus is not in the cache.
            on_step: Called with the number of steps done in that run.
        """
        self._exercise = exercise
        self._run_dir = run_dir
        self._cache_dir = cache_dir
        self._fault = exercise.intervention()
        torch.set_num_threads(1)  # sums over two threads differ from those over one in the last bit
        outcome = self._train_shown(on_text, on_step)
        self.truth = copy.deepcopy(self._fault.truth)  # later runs of the fault change its truth
        """What the intervention actually did."""
        self.run = read_journal(RunDirectory(run_dir)).block
        """The whole run without any action."""
        self._wait_loss = outcome.eval_loss

    @property
    def shown(self) -> Block:
        """The records up to the decision step."""
        return self.run[: int((self.run.step < self._exercise.decision_step).sum())]

    @cached_property
    def stakes(self) -> Stakes:
        """What can be gained, from a run that continues at the last good checkpoint, fault-free."""
        start = self._exercise.last_good
        harmless = None if self._fault.is_fault else self._fault
        outcome, block = self._train_from(start, harmless, no_remedy)
        return Stakes(
            loss_before=float(block.column(EVAL_LOSS).values[0]),
            loss_fixed=outcome.eval_loss,
            steps=self._exercise.steps - start,
        )

    def carry_out(self, answer: Answer) -> Result:
        """Carry out an answer and train to the end."""
        if answer.kind is ActionKind.STOP:
            return Result(eval_loss=self._best_checkpoint(), steps=0)
        plan = make_plan(answer, self._exercise, self._fault)
        if answer.kind is ActionKind.WAIT:
            loss = self._wait_loss
        else:
            outcome, _ = self._train_from(plan.start, plan.fault, plan.remedy)
            loss = outcome.eval_loss
        return Result(eval_loss=loss, steps=self._exercise.steps - plan.cost_from)

    def _best_checkpoint(self) -> float:
        """Held-out loss of the best existing checkpoint; each of them was evaluated."""
        found = self.shown.column(EVAL_LOSS)
        # A resumed run is evaluated after its resume, so the checkpoint there is not among them.
        return float(min([self.stakes.loss_before, *found.values[found.finite]]))

    def _train_shown(self, on_text: Progress | None, on_step: OnStep | None) -> Outcome:
        exercise = self._exercise
        stop = exercise.onset if exercise.is_resumed else None

        def after_step(done: int, loss: Tensor) -> None:
            if on_step is not None:
                on_step(done)
            if done == stop:
                raise _Stopped

        def train_part(*, resume: bool) -> Outcome:
            return train(
                exercise.config(),
                self._run_dir,
                resume=resume,
                cache_dir=self._cache_dir,
                on_text=on_text,
                on_step=after_step,
                guard_config=_EVERY_STEP,
                intervention=self._fault,
            )

        if stop is None:
            return train_part(resume=False)
        with contextlib.suppress(_Stopped):
            train_part(resume=False)
        return train_part(resume=True)

    def _train_from(
        self, start: int, fault: Intervention | None, remedy: Remedy
    ) -> tuple[Outcome, Block]:
        """Train from a checkpoint to the end, in a temporary folder."""
        exercise = self._exercise
        config = dataclasses.replace(
            exercise.config(), checkpoint_steps=exercise.steps, eval_steps=start
        )
        intervention = RemedyAndFault(
            onset=exercise.decision_step, severity=0.0, seed=0, remedy=remedy, fault=fault
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
                intervention=intervention,
            )
            return outcome, read_journal(RunDirectory(run_dir)).block
