"""A run without any finite gradient is undone once, whoever did not see what was written."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.launch import run_ranks
from tests.kit.undo import KINDS, Edit, Loop, refusals, same, train, undos
from tests.live.recover.test_undo_ranks import body, local

from trimtab.core.errors import NonFiniteRun
from trimtab.live.recover.memory_watch import MemoryWatch
from trimtab.live.recover.rules import STUCK_STEPS

AT = 25


def see_nothing(self: MemoryWatch, tensors: Sequence[torch.Tensor]) -> Iterator[int]:
    """Watch no bits: in a large model most of them are not, in any one update."""
    return iter(())


@pytest.fixture(autouse=True)
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryWatch, "_choose", see_nothing)


def overflow_weight(loop: Loop) -> None:
    """Make one weight so large that everything overflows; it is finite itself."""
    norm = dict(loop.model.named_parameters())["blocks.1.norm.weight"]
    norm.detach().numpy()[3] = 3e38


def spoil(loop: Loop) -> None:
    """Make all gradients of this step NaN."""
    for parameter in loop.model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))


@pytest.mark.parametrize("name", ["plain", "fused", "foreach", "scaler", "sgd", "two optimizers"])
def test_a_weight_that_overflows_everything_is_undone(name: str, tmp_path: Path) -> None:
    steps = AT + STUCK_STEPS + 20
    loop = train(KINDS[name], tmp_path, "recover", steps=steps, edits={AT: overflow_weight})
    (undo,) = undos(tmp_path)
    assert "no finite gradient" in str(undo.facts["why"])
    assert undo.step >= AT + STUCK_STEPS
    assert any(same(loop.states[undo.step], before) for before in loop.states[AT - 12 : AT])
    assert np.isfinite(loop.losses[-10:]).all()
    assert not same(loop.states[-1], loop.states[undo.step])  # it learns again


def test_data_that_stays_broken_costs_one_undo(tmp_path: Path) -> None:
    steps = AT + 2 * STUCK_STEPS + 30
    edits: dict[int, Edit] = dict.fromkeys(range(AT, steps - 10), spoil)
    with pytest.raises(NonFiniteRun):  # as without `recover`, after as many steps
        train(KINDS["plain"], tmp_path, "recover", steps=steps, edits=edits)
    (undo,) = undos(tmp_path)
    assert int(undo.facts["updates_lost"]) <= 10


def test_a_loss_that_was_never_finite_is_not_undone(tmp_path: Path) -> None:
    edits: dict[int, Edit] = dict.fromkeys(range(70), spoil)
    train(KINDS["plain"], tmp_path, "recover", steps=70, edits=edits)
    assert undos(tmp_path) == []
    assert len(refusals(tmp_path)) == 1


def test_weights_that_code_has_written_are_kept(tmp_path: Path) -> None:
    def load(loop: Loop) -> None:
        with torch.no_grad():
            dict(loop.model.named_parameters())["blocks.1.norm.weight"][3] = 3e38

    steps = AT + STUCK_STEPS + 20
    loop = train(KINDS["plain"], tmp_path, "recover", steps=steps, edits={AT: load})
    assert undos(tmp_path) == []
    assert loop.states[-1][0].isfinite().all()
    assert dict(loop.model.named_parameters())["blocks.1.norm.weight"].max() > 1e38


def overflow(model: Any, optimizer: Any) -> None:
    *_, bias = model.parameters()
    local(bias.detach()).detach().numpy()[0] = 1e38


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_ranks_return_together(layout: str, tmp_path: Path) -> None:
    results = run_ranks(
        partial(body, layout, overflow, 1, tmp_path, steps=AT + STUCK_STEPS + 20), 2
    )
    (undo,) = undos(tmp_path)
    assert all(seen[undo.step] in seen[:AT] for seen in results)
    if layout == "ddp":
        assert results[0][-1] == results[1][-1]
