"""Injection points: at the right step, in training only, and across a resume."""

import dataclasses
from collections import Counter
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, STILL, Bench, differing
from tests.lab.training import TRAINED, per_step
from torch import Tensor

from trimtab.core import signals
from trimtab.lab.corpus.data import Batch
from trimtab.lab.model.gpt import Output
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    Intervention,
    RunParts,
    before_step,
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


class _Counting(_Test):
    """Records its calls and the optimizer's step count at each."""

    def attach(self, parts: RunParts) -> LabRun:
        self.decision_step: Counter[tuple[int, int]] = Counter()
        return before_step(parts.run, partial(self._count, parts.run))

    def _count(self, run: LabRun, step: int) -> None:
        counts = {int(state["step"]) for state in run.optimizer.state.values()} or {0}
        self.decision_step[step, max(counts)] += 1


def test_before_step_acts_once_and_after_the_previous_step(bench: Bench) -> None:
    touch = _make(_Counting)
    bench.broken(touch, accumulate=4)
    assert touch.decision_step == {(step, step): 1 for step in range(STEPS)}


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


def test_an_injected_loader_resumes_at_its_position(bench: Bench) -> None:
    # The bench observes every run through an injected loader.
    resumed, whole = bench.clean(Base.RESUME), bench.clean()
    assert [event.kind for event in resumed.block.events].count("checkpoint") == 2
    for signal in (*TRAINED, signals.FINGERPRINT):
        assert per_step(resumed.block, signal) == per_step(whole.block, signal)
