"""What is measured of an incident: a batch served again, and the layer that moved first."""

import numpy as np
from tests.kit.synthetic import block_of, incident_of

from trimtab.core.block import Block, Column
from trimtab.core.incidents import Moment
from trimtab.core.run import RunFacts
from trimtab.core.signals import FINGERPRINT, LOSS
from trimtab.explain.context import IncidentContext
from trimtab.explain.measures import (
    BatchRepeats,
    find_repeated_batch,
    first_movers,
    lasting_jump,
)

ONSET, LAST = 50, 70


def found(fingerprints: list[int], attempts: list[int] | None = None) -> BatchRepeats | None:
    """What is reported for an incident from step 50 to 70."""
    count = len(fingerprints)
    block = Block.from_columns(
        {
            LOSS: Column.complete(np.full(count, 3.0)),
            FINGERPRINT: Column.complete(np.array(fingerprints, dtype=np.float64)),
        },
        step=np.arange(count),
        attempt=None if attempts is None else np.array(attempts),
        data_position=1000 + np.arange(count),
    )
    onset, last = (Moment(step=step, tick=step, loss=3.0) for step in (ONSET, LAST))
    incident = incident_of(onset, last=last, records=20)
    context = IncidentContext.of(incident, block, RunFacts())
    return find_repeated_batch(context)


def test_a_jump_that_stays_is_told_of_a_short_log_where_the_loss_measures() -> None:
    values = np.array([10.1, 8.2, 7.0, 6.5, 6.1, 5.8, 5.6, 9.9, 9.7, 9.8, 9.6, 9.7])
    told = lasting_jump(block_of({"loss": values}))
    assert told == "the loss jumped at step 8 (5.6 -> 9.9) and stayed"
    assert lasting_jump(block_of({"loss": values[:10]})) == ""  # three records of it
    assert lasting_jump(block_of({"loss": np.append(values, 5.5)})) == ""
    assert lasting_jump(block_of({"loss": values, "reward": values})) == ""


def test_the_repeated_batch_is_named_with_its_first_and_last_position() -> None:
    fingerprints = list(range(100))
    fingerprints[50:58] = [49] * 8
    assert found(fingerprints) == BatchRepeats(
        step=49,
        data_position=1049,
        count=9,
        last_step=57,
        last_data_position=1057,
        num_others=0,
    )


def test_a_loader_that_went_back_repeats_several_batches() -> None:
    fingerprints = list(range(100))
    fingerprints[52:60] = range(10, 18)
    repeated = found(fingerprints)
    assert repeated is not None
    assert (repeated.data_position, repeated.count, repeated.num_others) == (1010, 2, 7)


def test_batches_that_differ_or_are_served_again_by_plan_are_not_reported() -> None:
    assert found([]) is None
    assert found(list(range(100))) is None
    assert found([step % 20 for step in range(100)]) is None  # a second epoch that goes on
    fingerprints = [*range(45), *range(20, 75)]
    assert found(fingerprints, attempts=[0] * 45 + [1] * 55) is None
    assert found(fingerprints) is not None


def run(moved: int | None) -> Block:
    generator = np.random.default_rng(0)
    found: dict[str, Column] = {}
    for layer in range(6):
        for family, noise in (("layer_param_norm/", 0.001), ("grad_norm/layer.", 0.2)):
            values = np.exp(noise * generator.standard_normal(20))
            values[15:] *= 3.0 if family.startswith("grad") else 1.0  # all gradients grow
            if layer == moved and family.startswith("layer"):
                values[15:] *= 1.5
            found[f"{family}{layer}"] = Column.complete(values)
    return Block.from_columns(found, step=np.arange(20))


def test_the_layer_of_a_fault_is_named_although_all_gradients_grow() -> None:
    moves, chart = first_movers(run(4), 15)
    assert [(move.layer, move.signal, move.step) for move in moves] == [
        ("4", "layer_param_norm/4", 15)
    ]
    assert 1.4 < moves[0].ratio < 1.6
    assert chart is not None
    assert chart.layers == tuple("012345")
    assert first_movers(run(None), 15) == ((), None)
