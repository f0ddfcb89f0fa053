"""Faults in the forward pass: growing weights, overflowing activations, a wrong loss."""

import math
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch
from tests.lab.observing import ONSET, STEPS, STILL, Bench, differing
from tests.lab.training import per_step
from torch import Tensor, nn

from trimtab.core import signals
from trimtab.lab.faults.training_faults import (
    AttentionGrowth,
    Fp16Overflow,
    LogicNan,
    LossReduction,
    OutputDrift,
)
from trimtab.lab.model.gpt import TransformerBlock
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import RunParts, current_step

QKV = {"blocks.0.attention.qkv.weight", "blocks.1.attention.qkv.weight"}
WIDTH = 32


def test_f09_grows_queries_and_keys_and_not_values(bench: Bench) -> None:
    fault = AttentionGrowth(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault, optimizer=STILL)
    before = clean.loop.weights[0]
    for step in range(STEPS):
        weights = run.loop.weights[step]
        times = max(step - ONSET + 1, 0)
        assert differing(weights, before) == (QKV if times else set())
        for name in QKV:
            grown = before[name][: 2 * WIDTH] * (1 + fault.strength) ** times
            np.testing.assert_allclose(weights[name][: 2 * WIDTH], grown, rtol=1e-5)
            assert (weights[name][2 * WIDTH :] == before[name][2 * WIDTH :]).all()
    # Logits are products of both, so they grow by the square.
    largest, usual = (per_step(one.block, "max_attention_logit") for one in (run, clean))
    square = (1 + fault.strength) ** (2 * (STEPS - ONSET))
    assert largest[STEPS - 1] / usual[STEPS - 1] == pytest.approx(square, rel=1e-3)


def test_f10_grows_the_last_gain(bench: Bench) -> None:
    fault = OutputDrift(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault, optimizer=STILL)
    before = clean.loop.weights[0]
    for step in range(STEPS):
        times = max(step - ONSET + 1, 0)
        assert differing(run.loop.weights[step], before) == ({"norm.weight"} if times else set())
        grown = before["norm.weight"] * (1 + fault.strength) ** times
        np.testing.assert_allclose(run.loop.weights[step]["norm.weight"], grown, rtol=1e-5)
    last = STEPS - 1
    found, expected = (per_step(one.block, "max_log_z")[last] for one in (run, clean))
    assert found > expected


@pytest.mark.slow
def test_f11_overflows_and_the_scale_collapses(bench: Bench) -> None:
    fault = Fp16Overflow(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault, steps=56)
    assert np.isfinite(clean.block.column(signals.LOSS).values).all()
    losses, scales = (per_step(run.block, name) for name in (signals.LOSS, signals.LOSS_SCALE))
    first = min(step for step, loss in losses.items() if not math.isfinite(loss))
    assert first > ONSET + 10  # at this strength it takes about 20 steps
    assert not any(math.isfinite(losses[step]) for step in range(first, 56))
    for step in range(first + 1, 56):
        assert scales[step] == scales[step - 1] / 2
    # The scaler skips every step, so the weights stay the same.
    assert not differing(run.loop.weights[first], run.loop.weights[55])


class _Measured(Fp16Overflow):
    """Records the output of the MLP before and after the change."""

    def attach(self, parts: RunParts) -> LabRun:
        self.trained: dict[int, float] = {}
        self.evaluated: set[float] = set()
        mlp = cast(TransformerBlock, parts.run.model.blocks[-1]).mlp
        norms: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            norms.append(output.detach().float().norm())

        def compare(module: nn.Module, inputs: Any, output: Tensor) -> None:
            times = float(output.detach().float().norm() / norms.pop())
            if torch.is_grad_enabled():
                self.trained[current_step(parts.run)] = times
            else:
                self.evaluated.add(times)

        mlp.register_forward_hook(keep)
        run = super().attach(parts)
        mlp.register_forward_hook(compare)
        return run


def test_f11_grows_by_a_factor_at_every_step_and_spares_evaluations(bench: Bench) -> None:
    fault = _Measured(onset=ONSET, severity=0.5, seed=0)
    bench.broken(fault)
    expected = {step: fault.strength ** max(step - ONSET + 1, 0) for step in range(STEPS)}
    assert fault.trained == pytest.approx(expected, rel=1e-2)  # fp16 has 3 digits
    assert fault.evaluated == {1.0}


def test_f12_has_no_loss_and_no_gradient(bench: Bench) -> None:
    fault = LogicNan(onset=ONSET, severity=0.0, seed=0)
    run, clean = bench.pair(fault)
    assert fault.end == ONSET + 1
    assert math.isnan(per_step(run.block, signals.LOSS)[ONSET])
    assert run.loop.gradients[ONSET].keys() == clean.loop.gradients[ONSET].keys()
    assert all(np.isnan(gradient).all() for gradient in run.loop.gradients[ONSET].values())
    # One batch is enough: all weights are NaN.
    assert all(np.isnan(weights).all() for weights in run.loop.weights[ONSET + 1].values())
    assert fault.truth == {"data_positions": [ONSET]}


def test_f12_lasts_as_many_batches_as_it_says(bench: Bench) -> None:
    fault = LogicNan(onset=ONSET, severity=0.5, seed=0)
    bench.broken(fault, accumulate=2)
    assert fault.end is not None
    assert fault.end > ONSET + 1
    assert fault.truth == {"data_positions": list(range(2 * ONSET, 2 * fault.end))}


@pytest.mark.parametrize(("seed", "logged_too"), [(0, False), (3, True)])
def test_f22_multiplies_the_loss_and_every_gradient(
    bench: Bench, seed: int, logged_too: bool
) -> None:
    fault = LossReduction(onset=ONSET, severity=1.0, seed=seed)
    assert fault.strength == 32  # a power of 2: the products below are exact
    run, clean = bench.pair(fault, optimizer=STILL)
    assert fault.truth == {"logged_loss_too": logged_too}
    losses, usual = (per_step(one.block, signals.LOSS) for one in (run, clean))
    for step in range(STEPS):
        factor = 32 if step >= ONSET else 1
        assert losses[step] == usual[step] * (factor if logged_too else 1)
        for name, gradient in clean.loop.gradients[step].items():
            assert (run.loop.gradients[step][name] == factor * gradient).all()
