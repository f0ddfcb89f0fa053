"""Injected faults have the shape they claim and change nothing else."""

import numpy as np
import pytest
from benchmarks.detect.injections import BLOOM_PEAK, SHAPES, bloom, fork_at
from benchmarks.detect.material import FIRST_ROW, LOSS_ONLY, WITH_NORM, sittings
from benchmarks.tests.runs import labelled, quiet_block

from trimtab.core.block import Block, Column

SHAPE = {shape.kind: shape for shape in SHAPES}


def test_the_spike_is_the_published_one() -> None:
    change = bloom()
    assert len(change.loss) == len(change.norm) == 36
    assert int(change.loss.argmax()) == int(change.norm.argmax()) == BLOOM_PEAK
    assert change.loss[BLOOM_PEAK] == pytest.approx(5.098124 - 2.198845)
    assert change.norm[0] == pytest.approx(0.947 / 0.242)
    assert (np.diff(change.loss[7:]) < 0).all()
    assert change.loss[-1] == pytest.approx(2.215699 - 2.198845)
    assert change.norm[-1] == pytest.approx(0.267 / 0.242)


@pytest.mark.parametrize("kind", SHAPE)
def test_a_fork_changes_loss_and_norm_only(kind: str) -> None:
    run = quiet_block(3000)
    fork = fork_at(run, 1500, SHAPE[kind])
    same = run[1500 : 1500 + len(fork.tail)]
    assert (fork.tail.step == same.step).all()
    assert (fork.tail.tick == same.tick).all()
    assert np.array_equal(fork.tail.column("lr").values, same.column("lr").values)
    assert fork.last == len(fork.tail) - 1
    assert np.isnan(fork.tail.column("loss").values).sum() == (kind == "spike after NaN")
    rise = fork.tail.column("loss").values - same.column("loss").values
    if fork.peak is not None:
        assert int(np.nanargmax(rise[fork.start :])) == fork.peak - fork.start


def test_a_missing_value_stays_missing() -> None:
    present = np.ones(3000, dtype=np.bool_)
    present[1501] = False
    loss = Column(np.where(present, 2.0, np.nan), present)
    run = Block.from_columns({"loss": loss}, step=np.arange(3000))
    fork = fork_at(run, 1500, SHAPE["shift 0.10"])
    assert fork.tail.column("loss").present.tolist() == present[1500:1800].tolist()


def test_material_draws_the_same_rows_every_time_and_keeps_to_healthy_pretraining() -> None:
    runs = [
        labelled(quiet_block(4000), name="with"),
        labelled(quiet_block(4000, norm=False), name="bare"),
        labelled(quiet_block(1500), name="short"),
        labelled(quiet_block(4000), name="tuning", tags=("llm", "sft")),
    ]
    first, again = sittings(runs, 20), sittings(runs, 20)
    for one, other in zip(first, again, strict=True):
        assert [fork.row for fork in one.forks] == [fork.row for fork in other.forks]
    count = {
        variant: sum(len(item.forks) for item in first if item.variant == variant)
        for variant in (WITH_NORM, LOSS_ONLY)
    }
    assert count == {WITH_NORM: 20 * len(SHAPES), LOSS_ONLY: 20 * len(SHAPES)}
    for item in first:
        assert not item.forks or item.run.name in ("with", "bare")
        assert all(fork.row >= FIRST_ROW for fork in item.forks)
        if item.variant == LOSS_ONLY:
            assert all("grad_norm" not in fork.tail.columns for fork in item.forks)
    assert [item.run.name for item in first if item.is_real] == [run.name for run in runs]
