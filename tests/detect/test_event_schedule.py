"""What is known to have happened before which record."""

import numpy as np
from tests.detect.feeding import block

from trimtab.core.block import Block, Event
from trimtab.core.detector import KnownChange
from trimtab.detect.detector_set import MIN_LASTING, MIN_SETTLED, EventSchedule


def changes(run: Block) -> list[tuple[int, KnownChange]]:
    whole, single = EventSchedule(), EventSchedule()
    for schedule in (whole, single):
        schedule.add(run.events)
    found = whole.update(run)
    one_by_one = [
        (row, what) for row in range(len(run)) for _, what in single.update(run[row:][:1])
    ]
    assert one_by_one == found
    assert single.state_dict() == whole.state_dict()
    return found


def event(kind: str, tick: int, step: int) -> Event:
    return Event(kind=kind, tick=tick, step=step)


def test_an_event_waits_for_its_record_and_for_its_step() -> None:
    late = event("evaluation", 8, 10)  # a live run writes its records two steps late
    events = [late, event("resume", 20, 20), event("note", 3, 3), event("resume", 90, 90)]
    assert changes(block(50, loss=1.0, events=events)) == [
        (10, KnownChange.PAUSED),
        (20, KnownChange.RESUMED),
    ]


def test_a_new_attempt_went_back() -> None:
    attempt = np.asarray(np.arange(50) >= 30, dtype=np.int64)
    assert changes(block(50, loss=1.0, attempt=attempt)) == [(30, KnownChange.WENT_BACK)]


def test_a_new_batch_size_is_a_change_once_it_has_lasted() -> None:
    tokens = np.full(100, 512.0)
    tokens[MIN_SETTLED:] = 1024.0
    changed = MIN_SETTLED + MIN_LASTING - 1
    odd = [(row, KnownChange.ODD_BATCH) for row in range(MIN_SETTLED, changed)]
    assert changes(block(100, tokens=tokens)) == [*odd, (changed, KnownChange.CHANGED)]
    tokens[MIN_SETTLED - 1 :] = 1024.0
    assert changes(block(100, tokens=tokens)) == []


def test_the_short_batch_at_the_end_of_an_epoch_is_no_change() -> None:
    tokens = np.full(300, 512.0)
    tokens[99::100] = 128.0
    tokens[250:252] = 64.0
    odd = [99, 199, 250, 251, 299]
    assert changes(block(300, tokens=tokens)) == [(row, KnownChange.ODD_BATCH) for row in odd]


def test_batch_sizes_that_all_differ_are_no_changes() -> None:
    assert changes(block(300, tokens=np.random.default_rng(0).integers(100, 200, 300))) == []


def test_several_changes_at_once_come_together() -> None:
    events = [event("resume", 5, 5), event("planned change", 5, 5)]
    assert changes(block(10, loss=1.0, events=events)) == [
        (5, KnownChange.RESUMED | KnownChange.CHANGED)
    ]
