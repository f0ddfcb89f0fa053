"""Harmless look-alikes: what the loop receives, and that nothing else changes."""

import pytest
from tests.lab.observing import ONSET, STEPS, Bench, Trained, differing
from tests.lab.training import first_difference, per_step

from trimtab.core import signals
from trimtab.lab.faults.harmless import (
    BatchRamp,
    Cooldown,
    LateWarmup,
    LongerSequences,
    LongEvaluation,
    PlannedMix,
    RightResume,
)
from trimtab.lab.trainer.intervention import Intervention


@pytest.mark.parametrize(("kind", "rows", "length"), [(BatchRamp, 2, 16), (LongerSequences, 8, 4)])
def test_batches_are_smaller_until_the_onset(
    bench: Bench, kind: type[Intervention], rows: int, length: int
) -> None:
    change = kind(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(change)
    for step in range(STEPS):
        part = (slice(rows), slice(length)) if step < ONSET else (slice(None), slice(None))
        assert (run.loop.tokens[step] == clean.loop.tokens[step][part]).all()
        assert (run.loop.targets[step] == clean.loop.targets[step][part]).all()
        assert run.loop.tokens[step].shape == run.loop.targets[step].shape
    assert run.loop.tokens[0].shape == (rows, length)
    assert change.truth == {"changes_at": ONSET}


def test_a_planned_mix_changes_every_row(bench: Bench) -> None:
    change = PlannedMix(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(change)
    changed = [
        step
        for step in range(STEPS)
        if (run.loop.tokens[step] != clean.loop.tokens[step]).any(axis=1).all()
    ]
    assert changed == list(range(ONSET, STEPS))


PEAK = 1e-3


def _shares(run: Trained) -> list[float]:
    return [rate / PEAK for rate in per_step(run.block, signals.LR).values()]


def test_a_cooldown_is_constant_and_then_falls_linearly_to_zero(bench: Bench) -> None:
    change = Cooldown(onset=ONSET, severity=1.0, seed=0)
    shares = _shares(bench.broken(change, warmup_steps=2))
    line = [(STEPS - step) / (STEPS - ONSET) for step in range(ONSET, STEPS)]
    assert shares == pytest.approx([0.5, *[1.0] * (ONSET - 1), *line])
    assert shares[ONSET] == pytest.approx(1.0)
    assert shares[-1] == pytest.approx(1 / (STEPS - ONSET))
    assert change.truth == {"changes_at": ONSET}


def test_a_late_warm_up_ends_at_the_onset(bench: Bench) -> None:
    change = LateWarmup(onset=ONSET, severity=1.0, seed=0)
    shares = _shares(bench.broken(change))
    assert shares[:ONSET] == pytest.approx([(step + 1) / ONSET for step in range(ONSET)])
    assert shares[ONSET] == pytest.approx(1.0)
    assert shares[ONSET:] == sorted(shares[ONSET:], reverse=True)
    assert change.truth == {"changes_at": ONSET}


def test_a_long_evaluation_changes_nothing_but_its_own_loss(bench: Bench) -> None:
    change = LongEvaluation(onset=ONSET, severity=0.0, seed=0)
    run, clean = bench.pair(change)
    assert first_difference(run.block, clean.block, besides=["eval_loss"]) is None
    assert not differing(run.loop.weights[STEPS - 1], clean.loop.weights[STEPS - 1])
    # It uses 20 batches and the twin 2, so the losses differ.
    assert ONSET in per_step(run.block, signals.EVAL_LOSS)
    assert first_difference(run.block, clean.block) == 0


def test_a_correct_resume_pauses_and_changes_nothing(bench: Bench) -> None:
    change = RightResume(onset=ONSET, severity=0.5, seed=0)
    run, clean = bench.pair(change)
    assert first_difference(run.block, clean.block) is None
    assert not differing(run.loop.weights[STEPS - 1], clean.loop.weights[STEPS - 1])
    assert not differing(run.loop.state[STEPS - 1], clean.loop.state[STEPS - 1])
    assert per_step(run.block, signals.DATA_SECONDS)[ONSET] >= change.strength
