"""What others list as good practice in a run that is under way, as purposeful changes."""

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.recover.phases import Phase
from benchmarks.recover.worlds import Run
from benchmarks.trial.changes import AT, PURPOSES


def _named(name: str) -> Callable[[Phase], Phase]:
    def register(change: Phase) -> Phase:
        PURPOSES[name] = change
        return change

    return register


def _scale_rate(run: Run, factor: float) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] *= factor  # of the plan, which has just set it


def _keep(run: Run, at: int, step: int) -> list[torch.Tensor]:
    if step == at:
        run.memory["kept"] = [p.detach().clone() for p in run.model.parameters()]
    found: list[torch.Tensor] = run.memory.get("kept", [])
    return found


@_named("lookahead, every 5 steps")
def _lookahead(run: Run, step: int) -> None:
    slow = _keep(run, AT, step)
    if step > AT and step % 5 == 0:
        with torch.no_grad():
            for parameter, kept in zip(run.model.parameters(), slow, strict=True):
                parameter.copy_(kept.lerp_(parameter, 0.5))


@_named("weights and rate rewound by 50 steps")
def _rewound(run: Run, step: int) -> None:
    old = _keep(run, AT - 50, step)
    if step == AT:
        with torch.no_grad():
            for parameter, kept in zip(run.model.parameters(), old, strict=True):
                parameter.copy_(kept)
    _scale_rate(run, 1.4 if step >= AT else 1.0)


@_named("averaged with the weights of 60 steps before")
def _soup(run: Run, step: int) -> None:
    old = _keep(run, AT - 60, step)
    if step == AT:
        with torch.no_grad():
            for parameter, kept in zip(run.model.parameters(), old, strict=True):
                parameter.lerp_(kept, 0.5)


@_named("eval mode from then on")
def _eval_mode(run: Run, step: int) -> None:
    run.model.train(step < AT)


@_named("warm-up again, from zero")
def _warm_up(run: Run, step: int) -> None:
    _scale_rate(run, min((step - AT + 1) / 30, 1.0) if step >= AT else 1.0)


@_named("restarts of 40 steps, each from three times the rate")
def _restarts(run: Run, step: int) -> None:
    _scale_rate(run, 3.0 - 2.9 * (step % 40) / 40 if step >= AT else 1.0)


@_named("another epsilon")
def _epsilon(run: Run, step: int) -> None:
    for group in run.optimizer.param_groups:
        if step >= AT and "eps" in group:
            group["eps"] = 1e-3


@_named("blocks frozen in turns of 15")
def _turns(run: Run, step: int) -> None:
    run.model.blocks.requires_grad_(step < AT or step // 15 % 2 == 0)


@_named("a tenth of the head's rows drawn anew every 40 steps")
def _dead_units(run: Run, step: int) -> None:
    if step >= AT and step % 40 == 0:
        with torch.no_grad():
            weight = run.model.head.weight
            rows = torch.rand(len(weight)) < 0.1
            weight[rows] = 0.05 * torch.randn_like(weight[rows])


@_named("longer by stages")
def _stages(run: Run, step: int) -> None:
    run.data.length = 6 if step < AT else 12 if step < AT + 30 else 24


@_named("every fourth batch of another task, weighed three times")
def _replay(run: Run, step: int) -> None:
    is_other = step >= AT and step % 4 == 0

    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        return 3 * run.world.loss(model, batch)

    run.data.table, run.loss = int(is_other), loss if is_other else None


@_named("logits cooled by two")
def _cooled(run: Run, step: int) -> None:
    class Cooled(nn.Module):
        """Halves the logits of the model."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            """Return half of what the model says."""
            made: torch.Tensor = run.model(inputs) / 2
            return made

    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        return run.world.loss(Cooled(), batch)

    run.loss = loss if step >= AT else None


@_named("the worse half of each batch alone")
def _worse_half(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        parts = batch if isinstance(batch, tuple) else (batch,)
        half = len(parts[0]) // 2
        cuts = [tuple(p[:half] for p in parts), tuple(p[half:] for p in parts)]
        halves = [
            run.world.loss(model, cut if isinstance(batch, tuple) else cut[0]) for cut in cuts
        ]
        return torch.stack(halves).max()

    run.loss = loss if step >= AT else None
