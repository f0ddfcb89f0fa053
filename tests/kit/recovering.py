"""A user's loop around a guard that can go back, for the tests of recovery."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

import trimtab
from tests.kit.runs import Run, TinyModel, batches, same_run, seed_all
from trimtab.core.config import Config
from trimtab.core.findings import HARMLESS
from trimtab.core.incidents import Incident
from trimtab.live.guard import Guard
from trimtab.live.no_guard import NoGuard

AnyGuard = Guard | NoGuard

NO_ACTIVATIONS = {"live.activations": False}


def plain_run(make: Callable[[Any], optim.Optimizer] | None = None, **options: Any) -> Run:
    """A run of a tiny model, always the same."""
    seed_all()
    model = TinyModel()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2) if make is None else make(model)
    options.setdefault("loader", batches(400))
    return Run(model=model, optimizers=[optimizer], **options)


def drive(
    run: Run,
    folder: Path,
    until: int,
    *,
    back: dict[int, int] | None = None,
    mode: str = "recover",
    settings: dict[str, Any] | None = None,
    clip: float | None = None,
    before_step: Callable[[int], None] = lambda step: None,
    on_step: Callable[[AnyGuard, int], None] = lambda guard, step: None,
    **rollback: Any,
) -> int:
    """Train to a step; `back` maps steps before which to return to the step they return to.

    Returns how often the run went back.
    """
    back = dict(back or {})
    with trimtab.watch(
        run.model,
        run.optimizers,
        run_dir=folder,
        mode=mode,
        config=Config().override({"ladder.enabled": False, **(settings or {})}),
        state={**(run.state or {}), "scheduler": run.schedulers, "scaler": run.scaler},
    ) as guard:
        while True:  # one turn is an epoch
            for step in guard.steps(run.loader, run.accumulate):
                if step.number >= until:
                    return guard.recovery.attempt if guard.recovery else 0
                before_step(step.number)
                train_step(run, guard, step.number, step, clip)
                on_step(guard, step.number)
                if step.number + 1 in back:
                    guard.rollback(to=back.pop(step.number + 1), **rollback)


def real(incidents: Iterable[Incident]) -> list[Incident]:
    """The incidents that are not only about the clock: this machine may be busy."""
    return [one for one in incidents if not HARMLESS.issuperset(one.symptoms)]


def train_step(
    run: Run, guard: AnyGuard, number: int, pairs: Iterable[Any], clip: float | None = None
) -> None:
    total = 0.0
    for inputs, targets in pairs:
        loss = nn.functional.mse_loss(run.model(inputs).float(), targets)
        guard.record(loss=loss, tokens=len(inputs))
        total += loss.item()
        scaled = loss / run.accumulate
        (run.scaler.scale(scaled) if run.scaler else scaled).backward()
    run.losses[number] = total
    if clip is not None:
        guard.clip_grad_norm_(clip)
    for optimizer in run.optimizers:
        run.scaler.step(optimizer) if run.scaler else optimizer.step()
    if run.scaler:
        run.scaler.update()
    for scheduler in run.schedulers:
        metrics = (total,) if "Plateau" in type(scheduler).__name__ else ()
        scheduler.step(*metrics)
    run.after_step(number)
    for optimizer in run.optimizers:
        optimizer.zero_grad()


def assert_exact(
    make_run: Callable[[], Run],
    folder: Path,
    *,
    until: int = 70,
    back: dict[int, int] | None = None,
    **options: Any,
) -> None:
    """A run that goes back ends like the run that never left, to the last bit."""
    back = back or {60: 40}
    straight = make_run()
    assert drive(straight, folder / "straight", until, **options) == 0
    random = torch.get_rng_state()
    returned = make_run()
    assert drive(returned, folder / "returned", until, back=back, **options) == len(back)
    same_run(straight, returned)
    assert torch.equal(random, torch.get_rng_state())
