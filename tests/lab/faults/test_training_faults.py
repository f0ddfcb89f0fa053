"""Faults in rates, optimizer, forward pass and settings: what the loop holds, step by step."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.observing import ONSET, STEPS, STILL, Bench, differing, seed_where, settings_for
from tests.lab.training import journal, per_step

from trimtab.core import signals
from trimtab.lab.faults.training_faults import (
    AttentionCollapse,
    AttentionGrowth,
    Fp16Overflow,
    Fp16Spiral,
    Frozen,
    LargeEpsilon,
    LogicNan,
    LossReduction,
    NoWarmup,
    OutputDrift,
    PostNorm,
    RateJump,
    RateTooHigh,
    StaleMoment,
    StrongDecay,
    WideInit,
    WrongSchedule,
)
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.intervention import Base, Intervention
from trimtab.lab.trainer.train_config import TrainConfig

EXACT = 1e-12
"""Relative: a product of three numbers is rounded in a different order; nothing else differs."""

FIVE_STEPS = seed_where(RateJump, lambda fault: fault.steps == 5)


@pytest.mark.parametrize(
    ("kind", "seed", "factor"),
    [
        (RateJump, FIVE_STEPS, lambda fault, fall: fault.strength),
        (RateTooHigh, 0, lambda fault, fall: fault.strength),
        # With a power of 1 it rises by the factor by which it should have fallen.
        (WrongSchedule, 0, lambda fault, fall: fall**-2),
    ],
)
def test_f05_f21_f24_multiply_the_rate(
    bench: Bench, kind: type[Intervention], seed: int, factor: Callable[[Any, float], float]
) -> None:
    fault = kind(onset=ONSET, severity=0.5, seed=seed)
    run, clean = (per_step(one.block, signals.LR) for one in bench.pair(fault))
    assert (fault.end or STEPS) <= STEPS
    for step in range(STEPS):
        if kind.from_start or fault.covers(step):
            times = factor(fault, clean[step] / clean[ONSET - 1])
            assert run[step] == pytest.approx(clean[step] * times, rel=EXACT)
        else:
            assert run[step] == clean[step]


def test_f07_shrinks_the_second_moment_and_makes_it_slow(bench: Bench) -> None:
    fault = StaleMoment(onset=ONSET, severity=1.0, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    seconds = {name for name in clean.state[ONSET] if name.endswith("exp_avg_sq")}
    assert differing(run.state[ONSET], clean.state[ONSET]) == seconds
    for name in seconds:
        shrunk = clean.state[ONSET][name] / np.float32(fault.strength)
        np.testing.assert_allclose(run.state[ONSET][name], shrunk, rtol=1e-6)
    betas = {step: {group["betas"] for group in run.groups[step]} for step in range(STEPS)}
    assert betas == {s: {(0.9, 0.95 if s < ONSET else 0.9999)} for s in range(STEPS)}
    assert fault.truth == {"beta2": 0.9999}
    assert not differing(run.weights[ONSET], clean.weights[ONSET])


@pytest.mark.parametrize(
    ("kind", "changed", "truth"),
    [
        (LargeEpsilon, lambda one, fault: {"eps": fault.strength}, {"epsilon_before": 1e-8}),
        (
            StrongDecay,
            lambda one, fault: {"weight_decay": one["weight_decay"] * fault.strength},
            {"weight_decay": pytest.approx(30.0)},
        ),
    ],
)
def test_f08_f23_change_one_setting_and_nothing_else(
    bench: Bench, kind: type[Intervention], changed: Callable[..., Any], truth: dict[str, Any]
) -> None:
    fault = kind(onset=ONSET, severity=1.0, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    for step in range(STEPS):
        is_hit = step >= ONSET
        assert run.groups[step] == [
            one | (changed(one, fault) if is_hit else {}) for one in clean.groups[step]
        ]
    assert not differing(run.state[ONSET], clean.state[ONSET])
    assert fault.truth == truth


@pytest.mark.parametrize(("severity", "frozen"), [(0.0, 2), (1.0, 14)])
def test_f19_freezes_some_tensors_and_the_others_move(
    bench: Bench, severity: float, frozen: int
) -> None:
    fault = Frozen(onset=ONSET, severity=severity, seed=0)
    run, clean = (one.loop for one in bench.pair(fault))
    blocks = {name for name in clean.weights[0] if name.startswith("blocks.")}
    chosen = set(fault.truth["parameters"])
    assert len(blocks) == 14
    assert len(chosen) == frozen
    assert chosen <= blocks
    everything = set(clean.weights[0])
    for step in range(STEPS - 1):
        moved = differing(run.weights[step], run.weights[step + 1])
        assert moved == (everything if step < ONSET else everything - chosen), step
    assert set(run.gradients[ONSET]) == everything - chosen


QKV = {"blocks.0.attention.qkv.weight", "blocks.1.attention.qkv.weight"}
WIDTH = 32


@pytest.mark.parametrize(
    ("kind", "names", "rows", "signal"),
    [
        (AttentionGrowth, QKV, 2 * WIDTH, "max_attention_logit"),
        (OutputDrift, {"norm.weight"}, WIDTH, "max_log_z"),
    ],
)
def test_f09_f10_grow_queries_and_keys_or_the_last_gain(
    bench: Bench, kind: type[Intervention], names: set[str], rows: int, signal: str
) -> None:
    fault = kind(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault, optimizer=STILL)
    before = clean.loop.weights[0]
    for step, weights in run.loop.weights.items():
        times = max(step - ONSET + 1, 0)
        assert differing(weights, before) == (names if times else set())
        for name in names:
            grown = before[name][:rows] * (1 + fault.strength) ** times
            np.testing.assert_allclose(weights[name][:rows], grown, rtol=1e-5)
            assert (weights[name][rows:] == before[name][rows:]).all()  # values
    found, usual = (per_step(one.block, signal)[STEPS - 1] for one in (run, clean))
    assert found > usual


def test_f11_overflows_and_the_scale_collapses(bench: Bench) -> None:
    fault = Fp16Overflow(onset=ONSET, severity=1.0, seed=0)
    run = bench.broken(fault, steps=56)
    losses, scales = (per_step(run.block, name) for name in (signals.LOSS, signals.LOSS_SCALE))
    first = min(step for step, loss in losses.items() if not math.isfinite(loss))
    assert first > ONSET + 10  # at this strength it takes about 20 steps
    assert not any(math.isfinite(losses[step]) for step in range(first, 56))
    for step in range(first + 1, 56):
        assert scales[step] == scales[step - 1] / 2
    # The scaler skips every step, so the weights stay the same; an evaluation is spared.
    assert not differing(run.loop.weights[first], run.loop.weights[55])
    assert all(map(math.isfinite, per_step(run.block, signals.EVAL_LOSS).values()))


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


Trial = Callable[[Scenario], Path]

USUAL = settings_for(Base.PLAIN)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (AttentionCollapse, lambda config, strength: config.optimizer.lr == strength),
        (Fp16Spiral, lambda config, strength: config.optimizer.lr == strength),
        (NoWarmup, lambda config, strength: (config.optimizer.lr, config.warmup) == (strength, 0)),
        (PostNorm, lambda config, strength: (config.model.layers, config.warmup) == (strength, 1)),
        (WideInit, lambda config, strength: config.model.init_std == strength),
    ],
)
def test_natural_kinds_change_settings_alone(
    kind: type[Intervention], changes: Callable[[TrainConfig, float], bool]
) -> None:
    natural = kind(onset=ONSET, severity=0.5, seed=0)
    config = natural.settings(USUAL)
    assert changes(config, natural.strength)
    moved = {f.name for f in dataclasses.fields(USUAL)}
    moved = {name for name in moved if getattr(config, name) != getattr(USUAL, name)}
    assert moved <= {"optimizer", "model", "warmup_steps"}


def test_a_large_init_starts_worse_than_guessing(bench: Bench) -> None:
    run, clean = bench.pair(WideInit(onset=ONSET, severity=1.0, seed=0), steps=1)
    found, usual = (per_step(one.block, signals.LOSS)[0] for one in (run, clean))
    assert usual == pytest.approx(math.log(512), abs=0.1)
    assert found > 2 * usual


@pytest.mark.slow
def test_fp16_overflows_at_a_high_learning_rate(trial: Trial) -> None:
    scenario = Scenario(kind="natural-fp16", seed=1, steps=200, severity=1.0)
    run, twin = (journal(trial(one)) for one in (scenario, scenario.twin()))
    assert all(math.isfinite(loss) for loss in per_step(twin, signals.LOSS).values())
    losses, scales = (per_step(run, name) for name in (signals.LOSS, signals.LOSS_SCALE))
    first = min(step for step, loss in losses.items() if not math.isfinite(loss))
    sizes = per_step(run, f"{signals.ACTIVATION_RMS}blocks.1")
    assert sizes[first - 1] > 100 * sizes[0]
    assert scales[199] < 1  # no scale fits, so the scaler keeps lowering it
