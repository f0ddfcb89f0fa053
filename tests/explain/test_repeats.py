"""A batch that was served several times is named; what is served again by plan is not."""

import numpy as np
from tests.kit.synthetic import incident_of

from trimtab.core.block import Block, Column
from trimtab.core.incidents import Moment
from trimtab.core.run import RunFacts
from trimtab.core.signals import FINGERPRINT, LOSS
from trimtab.explain.context import IncidentContext
from trimtab.explain.measures import BatchRepeats, find_repeated_batch

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


def test_batches_that_differ_are_not_reported() -> None:
    assert found(list(range(100))) is None


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


def test_a_second_epoch_that_goes_on_is_not_reported() -> None:
    assert found([step % 20 for step in range(100)]) is None


def test_another_attempt_serves_its_batches_again() -> None:
    fingerprints = [*range(45), *range(20, 75)]
    attempts = [0] * 45 + [1] * 55
    assert found(fingerprints, attempts) is None
    assert found(fingerprints) is not None


def test_without_fingerprints_nothing_is_known() -> None:
    assert found([]) is None
