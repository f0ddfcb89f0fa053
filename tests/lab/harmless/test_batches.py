"""Planned changes of the batch: what the loop receives before and after."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, Bench

from trimtab.lab.faults.harmless import BatchRamp, LongerSequences, PlannedMix
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
