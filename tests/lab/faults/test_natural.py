"""Natural instabilities: each changes its setting and nothing else."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, Bench, settings_for
from tests.lab.training import journal, per_step

from trimtab.core import signals
from trimtab.lab.faults.training_faults import (
    AttentionCollapse,
    Fp16Spiral,
    NoWarmup,
    PostNorm,
    WideInit,
)
from trimtab.lab.scenarios.catalogue import NATURAL
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.intervention import Base, Intervention
from trimtab.lab.trainer.train_config import TrainConfig

Trial = Callable[[Scenario], Path]

USUAL = settings_for(Base.PLAIN)


@pytest.mark.parametrize("name", NATURAL)
def test_only_the_settings_change(name: str) -> None:
    natural = NATURAL[name](onset=ONSET, severity=1.0, seed=0)
    changed = natural.settings(USUAL)
    names = {f.name for f in dataclasses.fields(USUAL)}
    moved = {n for n in names if getattr(changed, n) != getattr(USUAL, n)}
    assert moved
    assert moved <= {"optimizer", "model", "warmup_steps"}


def test_each_natural_kind_changes_its_setting() -> None:
    def changed(kind: type[Intervention]) -> tuple[float, TrainConfig]:
        natural = kind(onset=ONSET, severity=0.5, seed=0)
        return natural.strength, natural.settings(USUAL)

    for kind in (AttentionCollapse, NoWarmup, Fp16Spiral):
        strength, config = changed(kind)
        assert config.optimizer.lr == strength
        assert (config.warmup == 0) == (kind is NoWarmup)
    strength, config = changed(PostNorm)
    assert (config.model.layers, config.model.post_norm, config.warmup) == (strength, True, 1)
    strength, config = changed(WideInit)
    assert config.model.init_std == strength


def test_a_large_init_starts_worse_than_guessing(bench: Bench) -> None:
    run, clean = bench.pair(WideInit(onset=ONSET, severity=1.0, seed=0), steps=1)
    found, usual = (per_step(one.block, signals.LOSS)[0] for one in (run, clean))
    assert usual == pytest.approx(math.log(512), abs=0.1)
    assert found > 2 * usual


@pytest.mark.slow
def test_attention_collapses_at_a_high_rate(trial: Trial) -> None:
    scenario = Scenario(kind="natural-attention", seed=1, steps=200, severity=1.0)
    run, twin = (journal(trial(one)) for one in (scenario, scenario.twin()))
    largest, usual = (per_step(block, "max_attention_logit")[199] for block in (run, twin))
    assert largest > 1000
    assert usual < 100
    # Silently: the loss is worse, without a visible event.
    found, expected = (per_step(block, signals.LOSS)[199] for block in (run, twin))
    assert expected < found < math.log(512)


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
