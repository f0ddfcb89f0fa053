"""Pauses: they take time and change no other number."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, Bench, differing
from tests.lab.training import first_difference, per_step

from trimtab.core import signals
from trimtab.lab.faults.harmless import LongEvaluation, RightResume


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
