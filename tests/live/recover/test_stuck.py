"""A run without any finite gradient is restored soon, and once."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.launch import run_ranks
from tests.kit.undo import KINDS, Edit, Loop, refusals, same, train, undos
from tests.live.recover.test_undo_ranks import body

from trimtab.core.errors import NonFiniteRun
from trimtab.live.recover.memory_watch import MemoryWatch
from trimtab.live.recover.rules import STUCK_STEPS
from trimtab.state.host_copy import local

AT = 25


@pytest.fixture(autouse=True)
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch no bits: in a large model most of them are not, in any one update."""
    monkeypatch.setattr(MemoryWatch, "after_update", lambda *_: None)


def overflow_weight(loop: Loop) -> None:
    """Make one weight so large that everything overflows; it is finite itself."""
    norm = dict(loop.model.named_parameters())["blocks.1.norm.weight"]
    norm.detach().numpy()[3] = 3e38


def spoil(loop: Loop) -> None:
    """Make all gradients of this step NaN."""
    for parameter in loop.model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))


def restored_early(loop: Loop, step: int) -> bool:
    return any(same(loop.states[step], before) for before in loop.states[AT - 12 : AT])


@pytest.mark.parametrize(
    "name",
    some_of(["plain", "fused", "foreach", "scaler", "two optimizers", "nadam"], "fused", "scaler"),
)
def test_a_weight_that_updates_cannot_have_moved_is_undone_in_three_steps(
    name: str, tmp_path: Path
) -> None:
    """It is finite itself, and everything that is computed with it overflows."""
    loop = train(KINDS[name], tmp_path, "recover", edits={AT - 1: overflow_weight})
    (undo,) = undos(tmp_path)
    assert "blocks.1.norm.weight further from the last snapshot" in str(undo.facts["why"])
    assert "certain" in str(undo.facts["how_sure"])
    assert AT <= undo.step <= AT + 3
    assert restored_early(loop, undo.step)
    assert np.isfinite(loop.losses[-10:]).all()
    assert not same(loop.states[-1], loop.states[undo.step])  # it learns again


def tensor_rate(loop: Loop) -> None:
    for group in loop.optimizers[0].param_groups:
        group["lr"] = torch.tensor(float(group["lr"]))


@pytest.mark.parametrize("name", ["sgd", "plain"])
def test_without_a_bound_an_enormous_weight_is_undone_as_soon(name: str, tmp_path: Path) -> None:
    """SGD moves weights as far as gradients say; a learning rate on the device is not read."""
    edits: dict[int, Edit] = {AT - 1: overflow_weight}
    if name == "plain":
        edits[3] = tensor_rate
    loop = train(KINDS[name], tmp_path, "recover", steps=AT + 30, edits=edits)
    (undo,) = undos(tmp_path)
    assert "no finite gradient in 1 update," in str(undo.facts["why"])
    assert "likely" in str(undo.facts["how_sure"])
    assert AT <= undo.step <= AT + 3
    assert restored_early(loop, undo.step)
    assert np.isfinite(loop.losses[-10:]).all()


@pytest.mark.parametrize("num_bad", [1, STUCK_STEPS - 1])
def test_a_few_bad_batches_are_not_undone(num_bad: int, tmp_path: Path) -> None:
    edits: dict[int, Edit] = dict.fromkeys(range(AT, AT + num_bad), spoil)
    train(KINDS["plain"], tmp_path, "recover", edits=edits)
    assert undos(tmp_path) == refusals(tmp_path) == []


def spoil_and_reset(loop: Loop) -> None:
    spoil(loop)
    head: Any = dict(loop.model.named_parameters())["head.weight"]
    torch.nn.init.normal_(head, std=30.0)


def test_a_reset_by_code_before_a_bad_batch_is_not_too_far(tmp_path: Path) -> None:
    train(KINDS["plain"], tmp_path, "recover", edits={AT: spoil_and_reset, AT + 1: spoil})
    assert undos(tmp_path) == refusals(tmp_path) == []


def test_data_that_stays_broken_costs_one_undo(tmp_path: Path) -> None:
    steps = AT + 140
    edits: dict[int, Edit] = dict.fromkeys(range(AT, steps - 10), spoil)
    with pytest.raises(NonFiniteRun):  # as without `recover`, after as many steps
        train(KINDS["plain"], tmp_path, "recover", steps=steps, edits=edits)
    (undo,) = undos(tmp_path)
    assert int(undo.facts["updates_lost"]) <= 10
    assert "no finite gradient in 6 updates" in str(undo.facts["why"])
    assert AT + STUCK_STEPS <= undo.step <= AT + STUCK_STEPS + 3
    assert "so it has a cause" in str(refusals(tmp_path)[0].facts["because"])


def test_a_loss_that_was_never_finite_is_not_undone(tmp_path: Path) -> None:
    edits: dict[int, Edit] = dict.fromkeys(range(70), spoil)
    train(KINDS["plain"], tmp_path, "recover", steps=70, edits=edits)
    assert undos(tmp_path) == []
    assert len(refusals(tmp_path)) == 1


def test_a_run_that_stands_still_is_restored_although_code_has_written_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be lost otherwise; the log says that the edit is taken back."""

    def load(loop: Loop) -> None:
        with torch.no_grad():
            dict(loop.model.named_parameters())["blocks.1.norm.weight"][3] = 3e38

    loop = train(KINDS["plain"], tmp_path, "recover", steps=AT + 30, edits={AT: load})
    (undo,) = undos(tmp_path)
    assert "no finite gradient" in str(undo.facts["why"])
    assert undo.facts["reverts_edits"] is True
    assert "what your code has written since is taken back, too" in caplog.text
    assert np.isfinite(loop.losses[-10:]).all()


def overflow(model: Any, optimizer: Any) -> None:
    *_, bias = model.parameters()
    local(bias.detach()).detach().numpy()[0] = 1e38


@pytest.mark.parametrize("layout", some_of(["ddp", "fsdp2"], "ddp"))
def test_ranks_return_together(layout: str, tmp_path: Path) -> None:
    results = run_ranks(partial(body, layout, overflow, 1, tmp_path, steps=AT + 20), 2)
    (undo,) = undos(tmp_path)
    # Its gradients were computed before; ranks make sure of each other with one more exchange.
    assert undo.step <= AT + 1 + 4
    assert all(seen[undo.step] in seen[:AT] for seen in results)
    if layout == "ddp":
        assert results[0][-1] == results[1][-1]
