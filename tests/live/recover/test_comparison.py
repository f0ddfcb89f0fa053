"""With `batch_loss` an earlier state is compared with the present one, on the present batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import loss_of
from tests.kit.undo import Kind, Loop, same, train, undos

from trimtab.live.recover import memory_watch
from trimtab.live.recover.comparison import (
    BEFORE,
    EVERY,
    SETTLED,
    LossHistory,
    OptionHistory,
    RememberedBatches,
)

AT, STEPS = 60, 100


def run(
    run_dir: Path, edits: dict[int, Any], mode: str = "recover", kind: Kind | None = None
) -> Loop:
    held: list[Loop] = []

    def batch_loss(batch: torch.Tensor) -> torch.Tensor:
        return loss_of(held[0].model, batch)

    def hold(loop: Loop) -> None:
        held[:] = [loop]

    return train(
        kind or Kind(), run_dir, mode, steps=STEPS, edits={0: hold, **edits}, batch_loss=batch_loss
    )


def rate(factor: float) -> Callable[[Loop], None]:
    def change(loop: Loop) -> None:
        for group in loop.optimizers[0].param_groups:
            group["lr"] *= factor

    return change


def test_a_learning_rate_that_was_wrong_for_some_steps_is_undone(tmp_path: Path) -> None:
    loop = run(tmp_path, {AT: rate(100.0), AT + 5: rate(0.01)})
    (undo,) = undos(tmp_path)
    assert "do better than the present ones" in str(undo.facts["why"])
    assert int(undo.facts["updates_lost"]) <= 30
    assert np.mean(loop.losses[-5:]) < np.mean(loop.losses[AT + 3 : AT + 8])


def test_a_rate_that_stays_up_is_the_users_own(tmp_path: Path) -> None:
    run(tmp_path, {AT: rate(100.0)})
    assert undos(tmp_path) == []


def test_with_another_weight_decay_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decay(loop: Loop) -> None:
        for group in loop.optimizers[0].param_groups:
            group["weight_decay"] = 30.0

    run(tmp_path, {AT: decay})
    assert undos(tmp_path) == []


def reset_by_data(loop: Any) -> None:
    loop.model.head.weight.data.normal_()


def clamp_by_data(loop: Any) -> None:
    for parameter in loop.model.parameters():
        parameter.data.clamp_(-0.05, 0.05)


@pytest.mark.parametrize("edit", [reset_by_data, clamp_by_data])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_an_edit_while_a_comparison_is_planned_is_left_alone(
    make: Any, edit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks learn of an edit some updates later; what is compared all the time meets it."""
    monkeypatch.setattr(LossHistory, "has_risen_since", lambda *given: True)
    run(tmp_path, {AT: edit}, kind=Kind(optimizer=make))
    assert undos(tmp_path) == []


def test_states_are_compared_only_where_all_weights_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an edit through `.data` may be missed, and taken back."""
    monkeypatch.setattr(memory_watch, "SHARE_BYTES", 1)
    run(tmp_path, {AT: rate(100.0), AT + 5: rate(0.01)})
    assert undos(tmp_path) == []


def test_a_comparison_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are those of protect also where states are compared all the time."""
    monkeypatch.setattr(LossHistory, "has_risen_since", lambda *given: True)
    protected = run(tmp_path / "protect", {}, "protect")
    recovering = run(tmp_path / "recover", {})
    assert undos(tmp_path / "recover") == []
    assert all(map(same, protected.states, recovering.states))


def test_the_loss_has_risen_if_every_recent_one_is_far_above_the_usual() -> None:
    history = LossHistory()
    for update in range(60):
        history.add(update, 2.0 + 0.01 * (update % 5))
    assert not history.has_risen_since(56, 60)
    history.add(60, 3.0)
    assert not history.has_risen_since(56, 61)  # one is not enough
    for update in range(61, 64):
        history.add(update, 3.0)
    assert history.has_risen_since(56, 64)
    assert not history.has_risen_since(56, 65)  # not at once again
    assert history.has_risen_since(56, 64 + EVERY)


def test_options_are_settled_128_updates_after_a_change() -> None:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
    options = OptionHistory(optimizer)
    (group,) = optimizer.param_groups

    def settled_after(**changes: object) -> list[bool]:
        group.update(changes)
        found = []
        for _ in range(SETTLED + 2):
            options.add()
            found.append(options.is_settled)
        return found

    assert all(settled_after())
    rise = settled_after(lr=2e-3)
    assert not any(rise[: SETTLED - 1])  # the rate of before is among the last
    assert rise[-1]
    assert all(settled_after(lr=1e-4))
    decay = settled_after(weight_decay=0.5)
    assert not any(decay[:SETTLED])
    assert decay[-1]


def test_too_few_losses_say_nothing() -> None:
    history = LossHistory()
    for update in range(BEFORE - 1):
        history.add(update, 2.0)
    for update in range(BEFORE - 1, BEFORE + 10):
        history.add(update, 9.0)
    assert not history.has_risen_since(BEFORE - 1, BEFORE + 10)


class Odd:
    """A batch of a class of its own."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


class Locked:
    """A batch that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


def test_batches_of_any_class_are_copied(caplog: pytest.LogCaptureFixture) -> None:
    batches = RememberedBatches()
    mine = Odd(np.zeros(3))
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    for batch in (mine, packed, {"x": [torch.zeros(2)]}):
        batches.add(batch)
    mine.values += 1  # a loop that writes to its batch
    assert next(iter(batches)).values.tolist() == [0, 0, 0]
    assert len(batches) == 3
    batches.add(Locked())
    batches.add(Locked())
    assert len(batches) == 3
    assert caplog.text.count("are not remembered") == 1
