"""Planned changes of the learning rate: the shape of each schedule."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, STEPS, Bench, Trained
from tests.lab.training import per_step

from trimtab.core import signals
from trimtab.lab.faults.harmless import Cooldown, LateWarmup

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
