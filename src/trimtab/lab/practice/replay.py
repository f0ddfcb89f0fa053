"""ExerciseReplay: trains the run of an exercise, then each answer from a checkpoint to the end.

    0 ------- last good ---- onset ---- decision ----------- end
              |                         '- wait: the run that the learner is shown
              |- lower LR: the same again, and from the decision on with a lower learning rate
              '- others: from here, or from the checkpoint of the answer, with a remedy

In one process a resumed run is bit-identical to an uninterrupted one. So an action at the decision
step can be carried out in a run that starts at a checkpoint and reaches that step again.
"""

import copy
import dataclasses
import logging
import math
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.core.signals import EVAL_LOSS
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.corpus.tokens import Progress
from trimtab.lab.practice.exercise import (
    AnswerResult,
    Exercise,
    ExerciseOrigin,
    PracticeAnswer,
    Stakes,
)
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Intervention,
    RunParts,
    WrappedLoader,
    before_step,
    current_step,
    scale_lr,
)
from trimtab.lab.trainer.train import TrainOutcome, train, train_in_parts

ChangeRun = Callable[[LabRun], LabRun]

_NORM_HISTORY = 50
_OUTLIER_RATIO = 8.0
"""A gradient norm above this many times the median of the last 50 is discarded. Measured in
exercises: batches of rare tokens 13 times, a summed loss 20, the largest healthy batch 6."""


@dataclass(kw_only=True)
class RemedyAndFault(Intervention):
    """A remedy, followed by the fault if that is still active."""

    cause = None
    title = "an action"
    strength_name = "none"
    is_fault = False
    remedy: ChangeRun
    fault: Intervention | None

    def attach(self, parts: RunParts) -> LabRun:
        run = self.remedy(parts.run)
        if self.fault is None:
            return run
        # A fault in some batches comes earlier, or not at all, if batches are skipped.
        run.clock.by_data = self.fault.by_data
        return self.fault.attach(dataclasses.replace(parts, run=run))


def no_remedy(run: LabRun) -> LabRun:
    return run


@cache  # equal remedies are the same object, and their run is trained once
def skip_batches(count: int) -> ChangeRun:
    def apply(run: LabRun) -> LabRun:
        run.clock.num_skipped = count
        loader = WrappedLoader(run.loader, lambda batches: islice(batches, count, None))
        return dataclasses.replace(run, loader=loader)

    return apply


def lower_lr_from(factor: float, from_step: int) -> ChangeRun:
    def apply(run: LabRun) -> LabRun:
        scale_lr(run, lambda step: 1 / factor if step >= from_step else 1.0)
        return run

    return apply


def roll_back_with(answer: PracticeAnswer) -> ChangeRun:
    """Return what `trimtab rollback` changes: updates are discarded, and the rate is lower."""
    first, end = answer.skip

    def apply(run: LabRun) -> LabRun:
        def gate(optimizer: torch.optim.Optimizer, *call: Any) -> None:
            if first <= current_step(run) < end:
                optimizer.zero_grad()

        run.optimizer.register_step_pre_hook(gate)
        return lower_lr_from(1 / answer.lr_factor, int(answer.number or 0))(run)

    return apply


def discard_outliers(run: LabRun) -> LabRun:
    """Discard updates whose gradient is not finite, or far larger than the recent ones."""
    squares: list[float] = []
    norms: deque[float] = deque(maxlen=_NORM_HISTORY)

    def measure(parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            squares.append(float(parameter.grad.double().square().sum()))

    def gate(optimizer: torch.optim.Optimizer, *call: Any) -> None:
        norm = math.sqrt(sum(squares)) / run.scaler.get_scale()
        if norm <= _OUTLIER_RATIO * float(np.median(norms or [norm])):  # False for NaN
            norms.append(norm)
        else:
            optimizer.zero_grad()

    # Measured as it is computed: when the optimizer runs, the gradient is already clipped.
    for parameter in run.model.parameters():
        parameter.register_post_accumulate_grad_hook(measure)
    run.optimizer.register_step_pre_hook(gate)
    return before_step(run, lambda step: squares.clear())


@contextmanager
def without_log() -> Iterator[None]:
    """Keep what the guard has to say out of the terminal: it names the cause."""
    logger = logging.getLogger("trimtab")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


_EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})
"""All signals at every step of the run that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """How an answer is carried out."""

    start: int
    """The checkpoint to start from."""
    fault: Intervention | None
    """The fault as it acts in the new run; None if it no longer does."""
    remedy: ChangeRun
    cost_from: int
    """The first step whose computation counts as a cost of the answer."""


def make_plan(answer: PracticeAnswer, exercise: Exercise, fault: Intervention) -> AnswerPlan:
    """Return how to carry out an answer."""
    good, decision, number = exercise.last_good, exercise.decision_step, answer.number or 0.0
    left = None if exercise.origin is ExerciseOrigin.ONCE else fault
    match answer.kind:
        case ActionKind.WAIT | ActionKind.STOP:
            return AnswerPlan(start=good, fault=fault, remedy=no_remedy, cost_from=decision)
        case ActionKind.LOWER_LR:
            lower = lower_lr_from(number, decision)
            return AnswerPlan(start=good, fault=fault, remedy=lower, cost_from=decision)
        case ActionKind.DISCARD:
            return AnswerPlan(start=good, fault=left, remedy=discard_outliers, cost_from=good)
        case ActionKind.SKIP:
            skip = skip_batches(int(number))
            return AnswerPlan(start=good, fault=left, remedy=skip, cost_from=good)
        case ActionKind.QUARANTINE:
            left = None if exercise.origin is ExerciseOrigin.BATCHES else left
            skip = skip_batches(decision - good)
            return AnswerPlan(start=good, fault=left, remedy=skip, cost_from=good)
        case ActionKind.ROLL_BACK:
            # A fault that is still active acts the same way again, so a run from a later checkpoint
            # equals the one from the last good checkpoint. Start from the latter, because part of
            # a fault's state is not in the checkpoint.
            start = int(number) if left is None else min(int(number), good)
            is_plain = not any(answer.skip) and answer.lr_factor == 1.0
            remedy = no_remedy if is_plain else roll_back_with(answer)
            return AnswerPlan(start=start, fault=left, remedy=remedy, cost_from=int(number))


class ExerciseReplay:
    """One exercise, trained on this machine."""

    def __init__(
        self,
        exercise: Exercise,
        run_dir: Path,
        *,
        cache_dir: Path | None = None,
        on_text: Progress | None = None,
        on_step: Callable[[int], None] | None = None,
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
        with without_log():
            outcome = train_in_parts(
                exercise.config(),
                run_dir,
                stop=exercise.onset if exercise.is_resumed else None,
                cache_dir=cache_dir,
                on_text=on_text,
                on_step=None if on_step is None else lambda done, loss: on_step(done),
                guard_config=_EVERY_STEP,
                intervention=self._fault,
            )
        self.truth = copy.deepcopy(self._fault.truth)  # later runs of the fault change its truth
        """What the intervention actually did."""
        self.run = read_journal(RunDirectory(run_dir)).block
        """The whole run without any action."""
        self._wait_loss = outcome.eval_loss
        self._trained: dict[tuple[int, bool, ChangeRun], tuple[TrainOutcome, Block]] = {}
        """By checkpoint, whether the fault is gone, and remedy."""

    @property
    def shown(self) -> Block:
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

    def carry_out(self, answer: PracticeAnswer) -> AnswerResult:
        """Carry out an answer and train to the end."""
        if answer.kind is ActionKind.STOP:
            return AnswerResult(eval_loss=self._best_checkpoint(), steps=0)
        plan = make_plan(answer, self._exercise, self._fault)
        if plan.fault is not None and plan.remedy is no_remedy:
            loss = self._wait_loss  # the same again, to the last bit, from any checkpoint
        else:
            outcome, _ = self._train_from(plan.start, plan.fault, plan.remedy)
            loss = outcome.eval_loss
        return AnswerResult(eval_loss=loss, steps=self._exercise.steps - plan.cost_from)

    def _best_checkpoint(self) -> float:
        """Held-out loss of the best existing checkpoint; each of them was evaluated."""
        found = self.shown.column(EVAL_LOSS)
        # A resumed run is evaluated after its resume, so the checkpoint there is not among them.
        return float(min([self.stakes.loss_before, *found.values[found.finite]]))

    def _train_from(
        self, start: int, fault: Intervention | None, remedy: ChangeRun
    ) -> tuple[TrainOutcome, Block]:
        """Train from a checkpoint to the end, in a temporary folder; once for equal arguments."""
        key = (start, fault is None, remedy)
        if key in self._trained:
            return self._trained[key]
        exercise = self._exercise
        config = dataclasses.replace(
            exercise.config(), checkpoint_steps=exercise.steps, eval_steps=start, measure=False
        )
        intervention = RemedyAndFault(
            onset=exercise.decision_step, severity=0.0, seed=0, remedy=remedy, fault=fault
        )
        name = f"step-{start:08d}.pt"
        with tempfile.TemporaryDirectory() as folder, without_log():
            run_dir = Path(folder)
            (run_dir / "checkpoints").mkdir()
            shutil.copy(self._run_dir / "checkpoints" / name, run_dir / "checkpoints")
            outcome = train(
                config, run_dir, resume=True, cache_dir=self._cache_dir, intervention=intervention
            )
            self._trained[key] = outcome, read_journal(RunDirectory(run_dir)).block
        return self._trained[key]
