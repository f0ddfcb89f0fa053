"""What an incident cost: the steps that are gone are those that the goodput misses."""

import numpy as np
from tests.kit.synthetic import add_spike, falling_loss

from trimtab.core.block import Block, Column, Event
from trimtab.core.events import RECOVERY, ROLLBACK
from trimtab.explain.goodput import compute_goodput, count_lost
from trimtab.judge import Judge

BACK_AT, TO, LENGTH = 610, 590, 800


def rolled_back_run() -> Block:
    """A spike at step 600 from which the run goes back to step 590."""
    step = np.array([*range(BACK_AT), *range(TO, LENGTH)])
    loss = falling_loss(len(step))
    spiked = add_spike(loss, 600)
    loss[600:BACK_AT] = spiked[600:BACK_AT]
    can = Event(kind=RECOVERY, tick=0, step=0, facts={"oldest_steps": 320})
    back = Event(kind=ROLLBACK, tick=BACK_AT, step=TO, facts={"to": TO})
    attempt = np.array([0] * BACK_AT + [1] * (LENGTH - TO))
    columns = {"loss": Column.complete(loss)}
    return Block.from_columns(columns, step=step, attempt=attempt, events=[can, back])


def test_a_rollback_costs_the_steps_since_the_state_it_returned_to() -> None:
    block = rolled_back_run()
    judge = Judge()
    judge.update(block)
    judge.finish()
    (incident,) = judge.incidents
    assert incident.rolled_back
    goodput = compute_goodput(block)
    assert count_lost(incident, block) == BACK_AT - TO == goodput.steps_done - goodput.steps_kept


def test_an_incident_that_passes_costs_no_step() -> None:
    block = Block.from_columns(
        {"loss": Column.complete(add_spike(falling_loss(LENGTH), 600))}, step=np.arange(LENGTH)
    )
    judge = Judge()
    judge.update(block)
    (incident,) = judge.incidents
    assert count_lost(incident, block) == 0
