"""F16: batches that arrive late, and no other change."""

import statistics

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.observing import ONSET, Bench
from tests.lab.training import first_difference, per_step

from trimtab.core import signals
from trimtab.lab.faults.machine_faults import LoaderStall

STEPS = ONSET + 26


@pytest.mark.slow
def test_f16_makes_four_batches_late_and_changes_no_number(bench: Bench) -> None:
    fault = LoaderStall(onset=ONSET, severity=0.0, seed=0)
    run, clean = bench.pair(fault, steps=STEPS)
    late = [ONSET, ONSET + 5, ONSET + 10, ONSET + 15]
    assert fault.truth == {"stalled_steps": late}
    assert fault.end == ONSET + 20
    waits = per_step(run.block, signals.DATA_SECONDS)
    assert all(waits.pop(step) >= fault.strength for step in late)
    assert statistics.median(waits.values()) < fault.strength / 2
    assert first_difference(run.block, clean.block) is None
