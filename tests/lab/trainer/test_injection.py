"""Injection points: at the right step, in training only, across a resume, by data or by step."""

import dataclasses
from typing import Any

import pytest
from tests.lab.observing import ONSET, STILL, Bench, differing
from tests.lab.training import per_step
from torch import Tensor

from trimtab.core import signals
from trimtab.lab.corpus.data import Batch
from trimtab.lab.model.gpt import Output
from trimtab.lab.scenarios.catalogue import KINDS
from trimtab.lab.trainer.checkpoints import LabRun, RunClock
from trimtab.lab.trainer.intervention import (
    Base,
    Intervention,
    RunParts,
    change_batches,
    change_gradient,
    change_output,
    scale_lr,
)


class _Test(Intervention):
    cause = None
    title = "a test"
    strength_name = "none"


def _make(kind: type[_Test]) -> Any:
    return kind(onset=ONSET, severity=1.0, seed=0)


class _Everywhere(_Test):
    """Uses every injection point at every step."""

    def attach(self, parts: RunParts) -> LabRun:
        change_output(parts.run, parts.forward, self._output)
        for parameter in parts.run.model.parameters():
            change_gradient(parts.run, parameter, self._gradient)
        return change_batches(parts.run, self._batch)

    def _batch(self, step: int, batch: Batch) -> Batch:
        return dataclasses.replace(batch, tokens=batch.tokens.flip(0))

    def _output(self, step: int, output: Output) -> Output:
        return output._replace(cross_entropy=output.cross_entropy + 100 + step)

    def _gradient(self, step: int, gradient: Tensor) -> Tensor:
        return gradient * (step + 2)


def test_an_evaluation_is_never_changed(bench: Bench) -> None:
    run = bench.broken(_make(_Everywhere), optimizer=STILL, eval_steps=3)
    clean = bench.clean(optimizer=STILL, eval_steps=3)
    losses, usual = (per_step(one.block, signals.EVAL_LOSS) for one in (run, clean))
    assert list(losses) == [0, 3, 6, 9, 12]
    assert losses == usual
    # That each point was used, at each step and with its number:
    for step, loss in per_step(run.block, signals.LOSS).items():
        assert loss - 100 - step == pytest.approx(6, abs=1)
        assert (run.loop.tokens[step] == clean.loop.tokens[step][::-1]).all()
        assert differing(run.loop.gradients[step], clean.loop.gradients[step])


class _FasterAfterResume(_Test):
    base = Base.RESUME

    def attach(self, parts: RunParts) -> LabRun:
        if parts.first_step:
            scale_lr(parts.run, lambda step: 3.0 if step < ONSET + 2 else 1.0)
        return parts.run


def test_the_lr_is_scaled_from_the_current_step_on(bench: Bench) -> None:
    run, clean = (per_step(one.block, signals.LR) for one in bench.pair(_make(_FasterAfterResume)))
    for step, rate in clean.items():
        factor = 3.0 if ONSET <= step < ONSET + 2 else 1.0
        assert run[step] == pytest.approx(factor * rate, rel=1e-12)


PATH = [(0, 0), (1, 2), (2, 8), (3, 10)]
"""Steps and data positions, two batches a step; those of steps 2 and 3 are skipped."""


@pytest.mark.parametrize(("by_data", "times"), [(False, [0, 1, 2, 3]), (True, [0, 1, 4, 5])])
def test_time_goes_by_data_or_step(by_data: bool, times: list[int]) -> None:
    clock = RunClock(accumulate=2)
    clock.by_data = by_data
    seen: list[int] = []
    clock.on_step(seen.append)
    for step, position in PATH:
        clock.begin(step, position)
        assert clock.time(step) == seen[-1]
    assert seen == times


def test_a_probe_sees_the_batch_it_runs() -> None:
    clock = RunClock()
    clock.by_data = True
    clock.begin(10, 10)
    with clock.at_batch(3):
        assert clock.time(10) == 3
        assert clock.time(11) == 3  # between two steps the schedule is one ahead
    assert clock.time(10) == 10
    clock.by_data = False
    clock.begin(10, 10)
    with clock.at_batch(3):
        assert clock.time(10) == 10


def test_faults_of_the_data_come_with_their_batches() -> None:
    by_data = {name for name, kind in KINDS.items() if kind.by_data}
    assert {"F01", "F02", "F03", "F04", "F12", "F20", "mix-switch"} <= by_data
    assert not by_data & {"F13w", "F05"}
