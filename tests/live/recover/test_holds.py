"""Options that stay as they were at a snapshot: in every update, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.recovering import drive, plain_run
from tests.kit.runs import Run
from tests.kit.tiny import journal_of
from torch import optim

from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.recover.holds import Holds


def jumping_run(tensor: bool = False, disturb: bool = True) -> Run:
    """The rate of the schedule is a hundred times too high from step 45 on."""
    run = plain_run(
        lambda model: optim.AdamW(model.parameters(), lr=torch.tensor(1e-3) if tensor else 1e-3)
    )
    at = 45 if disturb else 10**6
    run.schedulers = [
        optim.lr_scheduler.LambdaLR(run.optimizers[0], lambda s: 100.0 if s >= at else 1.0)
    ]
    return run


def rate(run: Run) -> float:
    return float(run.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_a_held_rate_acts_in_updates_and_the_scheduler_never_sees_it(
    tensor: bool, tmp_path: Path
) -> None:
    run = jumping_run(tensor)
    between: dict[tuple[int, int], float] = {}
    inside: dict[tuple[int, int], float] = {}

    def look(guard: Any, step: int) -> None:
        between[guard.recovery.attempt, step] = rate(run)
        if len(between) == 1:
            run.optimizers[0].register_step_pre_hook(
                lambda *_: inside.update({(guard.recovery.attempt, len(inside)): rate(run)})
            )

    drive(run, tmp_path, 70, back={50: 40}, on_step=look, hold=["lr"])
    assert between[1, 60] == pytest.approx(0.1)  # the schedule's
    held = [value for (attempt, _), value in inside.items() if attempt == 1]
    assert held
    assert all(value == pytest.approx(1e-3) for value in held)
    steady = jumping_run(tensor, disturb=False)
    drive(steady, tmp_path / "steady", 70)
    for mine, theirs in zip(run.model.parameters(), steady.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    block = journal_of(tmp_path)[50:]
    late = block.step >= 45
    assert block.column("lr").values == pytest.approx(1e-3)
    updates = block.column("update_per_lr")  # measured at the rate that acted
    assert updates.values[updates.present].max() < 10 * updates.values[updates.present].min()
    assert block.column("planned_lr").values[late] == pytest.approx(0.1)
    # What is computed from the rate is computed from the one that acted.
    some = block.column("update_per_lr").values[late & block.column("update_per_lr").present]
    assert len(some)
    assert (some > 0.01).all()


def test_other_options_are_held_until_they_are_released(tmp_path: Path) -> None:
    run = plain_run()
    group = run.optimizers[0].param_groups[0]
    inside: list[tuple[Any, Any]] = []
    names: list[tuple[str, ...]] = []

    def disturb(guard: Any, step: int) -> None:
        if step == 0:
            run.optimizers[0].register_step_pre_hook(
                lambda *_: inside.append((group["betas"], group["weight_decay"]))
            )
        if step == 45:
            group["betas"], group["weight_decay"] = (0.5, 0.5), 3.0
        if guard.recovery.attempt and step == 60:
            guard.release("betas")
        if guard.recovery.attempt and step == 65:
            guard.event("planned change", what="weight decay")
        names.append(guard._monitor.holds.names)

    drive(run, tmp_path, 70, back={50: 40}, on_step=disturb, hold=["betas", "weight_decay"])
    again = inside[49:]  # the hook was made after the first update
    assert set(again[:20]) == {((0.9, 0.999), 0.01)}
    assert again[22] == ((0.5, 0.5), 0.01)
    assert again[-1] == ((0.5, 0.5), 3.0)
    assert names[-1] == ()
    events = read_journal(RunDirectory(tmp_path)).block.events
    assert "planned change" in [event.kind for event in events]


def test_frozen_parameters_are_trained_again_and_stay_so(tmp_path: Path) -> None:
    run = plain_run()
    head = run.model.get_submodule("head")

    def freeze(guard: Any, step: int) -> None:
        if step in (45, 55):
            head.requires_grad_(False)

    drive(run, tmp_path, 70, back={50: 40}, on_step=freeze, hold=["requires_grad"])
    assert all(p.requires_grad for p in head.parameters())


def test_parameters_that_the_loop_freezes_again_train_as_if_it_had_not(tmp_path: Path) -> None:
    """The loop freezes at the start of a step, after the boundary and before the forward pass."""
    run = plain_run()
    head = run.model.get_submodule("head")

    def freeze(step: int) -> None:
        if step == 45:
            head.requires_grad_(False)

    drive(run, tmp_path, 70, back={50: 40}, before_step=freeze, hold=["requires_grad"])
    steady = plain_run()
    drive(steady, tmp_path / "steady", 70)
    for mine, theirs in zip(run.model.parameters(), steady.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    head.requires_grad_(False)
    run.model(next(iter(run.loader))[0])
    assert not any(p.requires_grad for p in head.parameters()), "a hook is left behind"


def test_what_is_held_keeps_its_first_value_at_a_second_rollback(tmp_path: Path) -> None:
    """The snapshots taken since hold the options of the schedule, which are not those meant."""
    run = jumping_run()
    drive(run, tmp_path, 80, back={50: 40, 70: 60}, hold=["lr"])
    assert journal_of(tmp_path).column("lr").values[-5:] == pytest.approx(1e-3)


def test_an_update_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    run = jumping_run()
    optimizer = run.optimizers[0]

    def fail(*_: Any) -> None:
        raise RuntimeError("in the update")

    def look(guard: Any, step: int) -> None:
        if guard.recovery.attempt == 1 and step == 50:
            handle = optimizer.register_step_pre_hook(fail)
            with pytest.raises(RuntimeError, match="in the update"):
                optimizer.step()
            handle.remove()

    drive(run, tmp_path, 60, back={50: 40}, on_step=look, hold=["lr"])
    assert rate(run) == pytest.approx(0.1)


def test_a_name_that_is_no_option_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'learning_rate'.*betas.*requires_grad"):
        drive(plain_run(), tmp_path, 70, back={50: 40}, hold=["learning_rate"])


def test_a_lowered_rate_returns_to_the_plan_by_itself() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([parameter], lr=0.1)
    holds = Holds(torch.nn.ParameterList([parameter]), [optimizer])
    holds.lower_rate(0.5, 40)
    rates = {}
    for step in (39, 40, 89, 140, 190, 250):
        holds.begin_step(step)
        with holds.effective([optimizer]):
            rates[step] = optimizer.param_groups[0]["lr"]
        assert optimizer.param_groups[0]["lr"] == 0.1
    assert rates == pytest.approx({39: 0.1, 40: 0.05, 89: 0.05, 140: 0.075, 190: 0.1, 250: 0.1})
