"""The cost of judging is measured on what it says it is."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.detect.cost import (
    SIGNALS,
    climbing_run,
    live_microseconds,
    log_seconds,
    plain_run,
    write_log,
)

from trimtab.judge import Judge
from trimtab.readers import read_log


def test_the_log_holds_the_run_with_all_signals(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    write_log(path, 300)
    read, run = read_log(path).block, plain_run(300)
    assert len(read) == 300
    for name in SIGNALS:
        assert np.allclose(read.column(name).values, run.column(name).values, rtol=1e-6), name
    reading, judging = log_seconds(path)
    assert reading > 0
    assert judging > 0


@pytest.mark.parametrize("climbs", [False, True])
@pytest.mark.parametrize("rows", [5, 50])
def test_the_live_cost_is_per_step(rows: int, climbs: bool) -> None:
    assert 0 < live_microseconds(rows=rows, warm=120, climbs=climbs) < 1e5


def test_a_loss_that_climbs_keeps_an_incident_open() -> None:
    judge = Judge()
    judge.update(climbing_run(1060, 1000))
    assert judge.incidents[-1].end is None
