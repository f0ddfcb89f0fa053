"""A guard that is off has the interface of one that watches: a loop never has to ask which."""

import inspect
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, make_model

import trimtab
from trimtab.live.guard import Guard, NoGuard
from trimtab.live.host.no_recorder import NoRecorder
from trimtab.live.host.recorder import Recorder
from trimtab.live.loop.state_guard import StateGuard
from trimtab.live.protect.gate import Gate, NoGate
from trimtab.live.recover.undo import Undo


def public_members(kind: type) -> dict[str, Any]:
    return {name: found for name, found in inspect.getmembers(kind) if name[0] != "_"}


def longest_call(signature: Signature) -> tuple[list[None], dict[str, None]]:
    """The positional and keyword arguments of a call that gives everything."""
    parameters = list(signature.parameters.values())
    by_name = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    positional = [None for p in parameters if p.kind is Parameter.POSITIONAL_ONLY]
    return positional, {p.name: None for p in parameters if p.kind in by_name}


def test_both_have_the_same_public_members() -> None:
    assert public_members(NoGuard).keys() == public_members(Guard).keys()


@pytest.mark.parametrize(
    "name", [name for name, member in public_members(Guard).items() if callable(member)]
)
def test_a_call_that_one_takes_the_other_takes_too(name: str) -> None:
    on, off = (inspect.signature(public_members(kind)[name]) for kind in (Guard, NoGuard))
    for one, other in ((on, off), (off, on)):
        positional, named = longest_call(one)
        other.bind(*positional, **named)
    defaults = {p.name: p.default for p in on.parameters.values()}
    assert all(defaults[p.name] == p.default for p in off.parameters.values() if p.name in defaults)


def methods(kind: type) -> set[str]:
    return {name for name, member in public_members(kind).items() if callable(member)}


def test_what_stands_for_a_part_that_is_off_has_its_methods() -> None:
    assert methods(NoGate) == methods(Gate)
    assert methods(NoRecorder) <= methods(Recorder)
    assert methods(StateGuard) <= methods(Undo)


def test_a_trainer_can_go_through_data_with_a_guard_that_is_off(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, enabled=False) as guard:
        guard.note_random_state()
        guard.skip_resume_audit()
        iterator = guard.step_iterator(batches(4), 2, data_position=6)
        numbers = []
        while (step := iterator.next_step()) is not None:
            assert len(list(step)) == 2
            guard.record(loss=1.0)
            numbers.append((step.number, step.data_position))
        assert numbers == [(0, 6), (1, 8)]
        assert guard.data_position == 10
