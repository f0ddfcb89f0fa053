"""One run of one arm, and what came of it."""

import contextlib
import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from benchmarks.recover.cases import STEPS, Case
from trimtab.core import signals
from trimtab.core.causes import Cause
from trimtab.core.config import Config, Mode
from trimtab.core.errors import NonFiniteRun, RunStopped
from trimtab.decide.ladder import recompute
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.exit_request import RunExit
from trimtab.lab.corpus.data import Batch, Loader
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train

BY_HAND_STEPS = 209
"""Steps that a restart by hand loses: the alarm is looked at 200 steps later, and the checkpoint is
9 steps older than the onset."""

EVAL_BATCHES = 16

WORLD, RANKS_SECONDS = 2, 600.0
"""Ranks of a fault that needs several, and how long their run may take."""


class Arm(StrEnum):
    """How the run is looked after."""

    CLEAN = "clean"
    UNGUARDED = "no guard"
    PROTECT = "protect"
    BY_HAND = "by hand"
    CONSTANT_RATE = "constant rate"
    """The rate of the onset from there on, against a schedule that is wrong."""
    RECOVER = "recover"


_MODES = {
    **dict.fromkeys((Arm.CLEAN, Arm.PROTECT, Arm.CONSTANT_RATE), Mode.PROTECT),
    Arm.RECOVER: Mode.RECOVER,
}
"""The twin is protected too: protecting makes optimizers fused, which rounds differently."""
_CONFIG = Config.from_dict({"ladder": {"max_relaunches": 1}})


class _SkippedData(Intervention):
    """From the onset on, the run reads the data that comes `BY_HAND_STEPS` steps later."""

    cause: ClassVar[Cause | None] = None
    title = "data skipped by a restart"
    strength_name = "steps"

    def attach(self, parts: RunParts) -> LabRun:
        """Leave batches out."""
        run = parts.run
        first = (self.onset - BY_HAND_STEPS + 200) * parts.config.accumulate
        count = BY_HAND_STEPS * parts.config.accumulate
        return dataclasses.replace(run, loader=_Skipping(run.loader, first, count))


class _ConstantRate(Intervention):
    """From the onset on, the learning rate stays what it is there."""

    cause: ClassVar[Cause | None] = None
    title = "a constant rate"
    strength_name = "times the rate"

    def attach(self, parts: RunParts) -> LabRun:
        """Stop the schedule."""
        scheduler = parts.run.scheduler
        scheduler.lr_lambdas = [self._held(planned) for planned in scheduler.lr_lambdas]
        return parts.run

    def _held(self, planned: Callable[[int], float]) -> Callable[[int], float]:
        return lambda step: planned(min(step, self.onset))


class _Skipping:
    def __init__(self, loader: Loader, first: int, count: int) -> None:
        self._loader, self._first, self._count = loader, first, count

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            if not self._first <= batch.position < self._first + self._count:
                yield batch

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)


_REFERENCES: dict[Arm, type[Intervention]] = {
    Arm.BY_HAND: _SkippedData,
    Arm.CONSTANT_RATE: _ConstantRate,
}
"""Arms without the fault itself."""


class _Stopped(Exception):
    """The run was stopped in order to be resumed."""


def measure(case: Case, arm: Arm, seed: int, folder: Path) -> dict[str, Any]:
    """Train one run; what came of it as JSON values."""
    shutil.rmtree(folder, ignore_errors=True)
    scenario = case.scenario(seed)
    is_faulty = arm is not Arm.CLEAN or case.is_healthy
    intervention = case.intervention(seed) if is_faulty else None
    if arm in _REFERENCES:
        intervention = _REFERENCES[arm](onset=scenario.onset, severity=1.0, seed=seed)
    config = dataclasses.replace(
        scenario.setting.config(scenario.required_base, STEPS),
        eval_steps=STEPS,
        eval_batches=EVAL_BATCHES,
        measure=False,
    )
    if intervention is not None:
        config = intervention.settings(config)
    stop = scenario.stop if arm is not Arm.BY_HAND else None
    if stop is not None:
        config = dataclasses.replace(config, checkpoint_steps=stop)
    arguments = (config, folder, arm, intervention, stop)
    if scenario.required_base is Base.RANKS:
        results = run_ranks(lambda rank: _train(*arguments), WORLD, timeout=RANKS_SECONDS)
        ended, stopped_at, losses = results[0]
    else:
        ended, stopped_at, losses = _train(*arguments)
    outcome = _read(folder)
    if stopped_at is not None and stop is not None:
        outcome["steps_lost"] += stopped_at - stop
    return outcome | {"loss": losses, "ended": ended, "onset": scenario.onset}


def _train(
    config: Any, folder: Path, arm: Arm, intervention: Intervention | None, stop: int | None
) -> tuple[str, int | None, float]:
    """Train to the end, with a resume where the fault needs one and a relaunch where asked for."""
    done_steps = 0

    def on_step(done: int, loss: Tensor) -> None:
        nonlocal done_steps
        done_steps = done
        if done == stop and not is_resumed:
            raise _Stopped

    def part(*, resume: bool, fault: Intervention | None) -> float:
        return train(
            config,
            folder,
            resume=resume,
            on_step=on_step,
            mode=_MODES.get(arm, Mode.OBSERVE),
            guard_config=_CONFIG,
            intervention=fault,
        ).eval_loss

    is_resumed = False
    try:
        if stop is None:
            return "done", None, part(resume=False, fault=intervention)
        with contextlib.suppress(_Stopped):
            part(resume=False, fault=intervention)
        is_resumed = True
        return "done", None, part(resume=True, fault=intervention)
    except RunStopped as stopped:
        if stopped.code == RunExit.RELAUNCH and stop is not None:
            return "relaunched", done_steps, part(resume=True, fault=None)
        return f"stopped {stopped.code} at {done_steps}: {stopped}", done_steps, math.nan
    except NonFiniteRun as error:
        return str(error), done_steps, math.nan


def _read(folder: Path) -> dict[str, Any]:
    """What the journal says about acts and costs."""
    block = read_journal(RunDirectory(folder)).block
    discarded = block.column(signals.DISCARDED)
    facts = [dict(event.facts) for event in block.events if event.kind == "rollback"]
    decisions = [event for event in block.events if event.kind == "decision"]
    number, mismatches = recompute(RunDirectory(folder).decisions)
    return {
        "steps_lost": sum(int(fact["steps_lost"]) for fact in facts),
        "rollbacks": [[fact["from"], fact["to"], fact["hold"], fact["skip"]] for fact in facts],
        "discarded": int((discarded.values[discarded.present] > 0).sum()),
        "acts": [
            f"{event.step} {dict(event.facts)['act']}"
            for event in decisions
            if dict(event.facts)["act"] not in ("wait", "probe")
        ],
        "probes": sum(event.kind == "probe" for event in block.events),
        "decisions": number,
        "mismatches": len(mismatches),
    }
