"""Which snapshots are kept, and what the tape serves again."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trimtab.core.errors import RestoreError, RunStopped
from trimtab.state.ring import SnapshotRing
from trimtab.state.snapshot import Snapshot
from trimtab.state.source import source_of
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState


def make_ring(slots: int = 7) -> tuple[SnapshotRing, TrainingState]:
    model = nn.Linear(1, 1)
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    return SnapshotRing([Snapshot() for _ in range(slots)], every=10, oldest=320), state


def steps_kept(ring: SnapshotRing) -> list[int]:
    return [slot.step for slot in ring.kept]


def test_ages_grow_geometrically_from_every_to_oldest() -> None:
    ring, state = make_ring()
    for step in range(2000):
        if ring.is_due(step):
            ring.take(state, step)
        if step > 700:
            ages = [step - kept for kept in steps_kept(ring)]
            assert ages[-1] < 10
            assert 320 <= ages[0] < 640
            assert all(old <= 3 * max(young, 10) for old, young in itertools.pairwise(ages))


@pytest.mark.parametrize("slots", [3, 5, 7])
def test_the_two_newest_snapshots_are_always_there(slots: int) -> None:
    """What is found a few steps after its onset may have begun just before the newest one."""
    ring, state = make_ring(slots)
    for step in range(0, 2000, 10):
        ring.take(state, step)
        assert steps_kept(ring)[-2:] == [step - 10, step][-len(ring.kept) :]
        assert step - steps_kept(ring)[0] < 2 * ring.oldest


def test_the_snapshot_that_an_open_incident_may_need_is_never_overwritten() -> None:
    ring, state = make_ring()
    for step in range(3000):
        if step == 1005:
            ring.hold_before(998)
            held = ring.newest_before(998)
            assert held is not None
            expected = held.step
        if ring.is_due(step):
            ring.take(state, step)
        if step >= 1005:
            found = ring.newest_before(998)
            assert found is not None
            assert found.step == expected


def test_snapshots_of_the_attempt_given_up_are_no_targets() -> None:
    ring, state = make_ring()
    for step in range(0, 100, 10):
        ring.take(state, step)
    target = ring.newest_before(50)
    assert target is not None
    ring.drop_after(target)
    assert steps_kept(ring)[-1] == target.step
    assert ring.newest_before(10**6) is target


def test_an_empty_snapshot_is_refused() -> None:
    _, state = make_ring()
    with pytest.raises(RestoreError, match="empty"):
        Snapshot().put(state)


def test_a_changed_model_is_refused_before_anything_is_written() -> None:
    first = nn.Linear(2, 2)
    model = nn.Sequential(first, nn.Linear(2, 2))
    state = TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    snapshot = Snapshot()
    snapshot.take(state, 0)
    with torch.no_grad():
        first.weight.fill_(7.0)
    model[1] = nn.Linear(2, 3)
    with pytest.raises(RestoreError, match=r"1\.weight"):
        snapshot.put(state)
    assert (first.weight == 7.0).all()


def served(tape: BatchTape, count: int) -> list[Any]:
    found = [tape.next_batch() for _ in range(count)]
    return [entry if entry is None else (entry[0], entry[1]) for entry in found]


def test_the_tape_serves_again_and_goes_on_where_the_loader_was() -> None:
    tape = BatchTape()
    tape.start(iter("abcdefgh"))
    assert served(tape, 5) == list(enumerate("abcde"))
    tape.rewind(2)
    assert served(tape, 5) == list(enumerate("abcdefg"))[2:]


def test_skipped_positions_are_passed_over_now_and_after_the_next_rewind() -> None:
    tape = BatchTape()
    tape.start(iter("abcdefghij"))
    served(tape, 5)
    tape.rewind(1, skip=[2, 3, 6])
    expected = [(1, "b"), (4, "e"), (5, "f"), (7, "h")]
    assert served(tape, 4) == expected
    tape.rewind(1)
    assert served(tape, 4) == expected


def from_sources(names: str) -> list[dict[str, Any]]:
    return [{"x": torch.tensor([n]), "source": name} for n, name in enumerate(names)]


def positions_served(tape: BatchTape) -> list[int]:
    return [found[0] for found in iter(tape.next_batch, None)]


def test_a_quarantined_source_is_passed_over_on_the_tape_and_later() -> None:
    tape = BatchTape()
    tape.start(from_sources("abababab"))
    assert [tape.next_batch() is not None for _ in range(4)] == [True] * 4
    assert [tape.source_at(n) for n in range(5)] == ["a", "b", "a", "b", None]
    tape.rewind(1)
    tape.quarantine("b")
    assert positions_served(tape) == [2, 4, 6]


def test_a_loader_with_nothing_but_a_quarantined_source_ends_the_run() -> None:
    tape = BatchTape()
    tape.quarantine("b")
    tape.start(itertools.cycle(from_sources("b")))
    with pytest.raises(RunStopped, match="nothing else to train on") as stopped:
        tape.next_batch()
    assert stopped.value.code == 76


@pytest.mark.parametrize(
    ("batch", "source"),
    [
        ({"source": "web"}, "web"),
        ({"source": ["web", "web"]}, "web"),
        ({"source": ["web", "code"]}, None),
        ({"source": torch.tensor(3)}, None),
        (SimpleNamespace(source="web"), "web"),
        (torch.zeros(2), None),
        ((torch.zeros(2), torch.zeros(2)), None),
        ({"source": ""}, None),
    ],
)
def test_a_batch_names_its_source_by_a_key_or_an_attribute(batch: Any, source: str | None) -> None:
    assert source_of(batch) == source


def test_the_tape_goes_back_over_the_border_of_an_epoch() -> None:
    tape = BatchTape()
    tape.start("abc")
    assert served(tape, 4) == [(0, "a"), (1, "b"), (2, "c"), None]
    tape.start("xyz")
    assert served(tape, 2) == [(3, "x"), (4, "y")]
    tape.rewind(1)
    assert served(tape, 6) == [(1, "b"), (2, "c"), (3, "x"), (4, "y"), (5, "z"), None]


def test_forgotten_batches_cannot_be_served_again() -> None:
    tape = BatchTape()
    tape.start("abcdef")
    served(tape, 5)
    tape.forget_before(3)
    assert len(tape) == 2
    tape.rewind(3)
    with pytest.raises(RestoreError, match="from 3 to 4, not 2"):
        tape.rewind(2)


def test_a_batch_that_the_user_changed_is_served_as_it_came() -> None:
    tape = BatchTape()
    tape.start([{"ids": torch.ones(2), "more": [torch.zeros(1)]}])
    first = tape.next_batch()
    assert first is not None
    first[1]["ids"] = None
    first[1]["more"].clear()
    tape.rewind(0)
    again = tape.next_batch()
    assert again is not None
    assert torch.equal(again[1]["ids"], torch.ones(2))
    assert len(again[1]["more"]) == 1


@dataclass(frozen=True, slots=True)
class Batch:
    inputs: torch.Tensor
    more: dict[str, torch.Tensor]


def test_a_batch_that_is_a_dataclass_is_copied_and_counted() -> None:
    tape = BatchTape()
    tape.start([Batch(torch.ones(4), {"mask": torch.zeros(4)})])
    first = tape.next_batch()
    assert first is not None
    object.__setattr__(first[1], "inputs", None)
    first[1].more.clear()
    tape.rewind(0)
    again = tape.next_batch()
    assert again is not None
    assert torch.equal(again[1].inputs, torch.ones(4))
    assert list(again[1].more) == ["mask"]
    assert tape.num_bytes == 32


def test_batches_from_workers_hold_no_file_open() -> None:
    data = TensorDataset(torch.randn(400, 3), torch.randn(400, 1))
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
    tape = BatchTape()
    tape.start(loader)
    served(tape, 3)
    before = num_open_files()
    served(tape, 90)
    assert num_open_files() <= before + 8


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_tape_that_keeps_nothing_any_more_serves_what_was_rewound() -> None:
    tape = BatchTape()
    tape.start([torch.tensor(float(n)) for n in range(10)])
    for _ in range(6):
        tape.next_batch()
    tape.rewind(2)
    tape.next_batch()
    tape.keep_nothing()  # as where a snapshot fails while steps are done again
    served = [tape.next_batch() for _ in range(7)]
    assert [found[0] for found in served if found is not None] == [3, 4, 5, 6, 7, 8, 9]
    assert tape.source_at(4) is None
    assert len(tape) == 0
