"""What an incident cost: the steps that are gone are those that the goodput misses."""

import dataclasses

import numpy as np
from tests.kit.synthetic import add_spike, falling_loss

from trimtab.core.block import Block, Column, Event
from trimtab.core.events import UNDO
from trimtab.explain.time_use import compute_goodput, count_lost
from trimtab.judge import Judge

AT, LENGTH = 600, 800


def test_an_incident_that_passes_costs_no_step_and_an_undo_its_updates() -> None:
    columns = {"loss": Column.complete(add_spike(falling_loss(LENGTH), AT))}
    block = Block.from_columns(columns, step=np.arange(LENGTH))
    judge = Judge()
    judge.update(block)
    (incident,) = judge.incidents
    assert count_lost(incident, block) == 0
    undo = Event(kind=UNDO, tick=AT + 3, step=AT + 3, facts={"updates_lost": 3})
    undone = dataclasses.replace(block, events=(undo,))
    goodput = compute_goodput(undone)
    assert count_lost(incident, undone) == 3 == goodput.steps_done - goodput.steps_kept
    # One that reaches back to before the onset takes those updates too.
    undo = dataclasses.replace(undo, facts={"updates_lost": 10})
    assert count_lost(incident, dataclasses.replace(block, events=(undo,))) == 10
