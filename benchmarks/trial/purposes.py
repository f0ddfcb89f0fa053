"""What people change on purpose in a run that is under way, not announced: nothing may be undone.

Phases of training as people plan them, the traps of the study that the rule of the trial comes from
(data that goes and comes back, cycles, sorted data, layers that are reset), changes that were
written down before any of them was run, and practice from the lists of others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.recover.worlds import Change, Run

AT = 200
"""The first step of a change."""

PURPOSES: dict[str, Change] = {}

BatchLoss = Callable[[Run, nn.Module, Any], Tensor]


def _named(name: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        PURPOSES[name] = change
        return change

    return register


def _once(name: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register what happens before step AT, and never again."""

    def register(happen: Callable[[Run], None]) -> Callable[[Run], None]:
        @_named(name)
        def change(run: Run, step: int) -> None:
            if step == AT:
                with torch.no_grad():
                    happen(run)

        return happen

    return register


# Learning rate and other options.


def set_options(run: Run, **options: object) -> None:
    for group in run.optimizer.param_groups:
        group.update({name: value for name, value in options.items() if name in group})


def scale_option(run: Run, name: str, factor: float) -> None:
    """Multiply an option of every group, as it was before the first call; the rate by its plan."""
    first = run.memory.setdefault(name, [group[name] for group in run.optimizer.param_groups])
    for group, value in zip(run.optimizer.param_groups, first, strict=True):
        group[name] = value * factor


def _on_plan(name: str, factor: Callable[[int], float]) -> None:
    """Register a factor of the planned learning rate."""
    _named(name)(lambda run, step: scale_option(run, "lr", factor(step)))


_on_plan("LR x4 for good", lambda step: 4 if step >= AT else 1.0)
_on_plan("LR x10 for 40, back", lambda step: 10 if AT <= step < AT + 40 else 1.0)
_on_plan("warm-up again, from zero", lambda step: min((step - AT + 1) / 30, 1) if step >= AT else 1)


@_once("betas changed")
def _betas(run: Run) -> None:
    set_options(run, betas=(0.9, 0.95), momentum=0.5)


@_named("weight decay up")
def _weight_decay(run: Run, step: int) -> None:
    set_options(run, weight_decay=0.3 if step >= AT else 0.01)


@_named("decay x300")
def _decay_for_good(run: Run, step: int) -> None:
    scale_option(run, "weight_decay", 300.0 if step >= AT else 1.0)


# Data.


def _data(name: str, field: str, value: Callable[[int], float]) -> None:
    """Register a change of what batches are drawn from."""
    _named(name)(lambda run, step: setattr(run.data, field, value(step)))


_data("other data", "table", lambda step: int(step >= AT))
_data("half new data", "table", lambda step: 2 if step >= AT else 0)
_data("new source joins", "table", lambda step: int(step >= AT and step % 2))
_data("alternating every 8", "table", lambda step: int(step >= AT and step // 8 % 2))
_data("sorted, turns of 20", "table", lambda step: int(step >= AT and step // 20 % 2))
_data("other domain for 40, back", "table", lambda step: int(AT <= step < AT + 40))
_data("easy then real", "temperature", lambda step: 0.2 if step < AT else 1.0)
_data("easy for 30, back", "temperature", lambda step: 0.3 if AT <= step < AT + 30 else 1.0)
_data(
    "sequences or pictures of another kind each 30 steps",
    "temperature",
    lambda step: (1.0, 0.5, 0.25)[step // 30 % 3] if step >= AT else 1.0,
)
_data("noisy labels", "noise", lambda step: 0.3 if step >= AT else 0.0)
_data("random labels now and then", "noise", lambda step: float(step >= AT and step % 10 == 0))
_data("batch ramp", "size", lambda step: 2 if step < 100 else 8 if step < AT else 32)
_data("batch down", "size", lambda step: 32 if step < AT else 2)
_data("longer sequences", "length", lambda step: 8 if step < AT else 48)


# Loss.


def _loss(name: str) -> Callable[[BatchLoss], BatchLoss]:
    """Register a loss that takes the place of the world's from step AT on."""

    def register(loss: BatchLoss) -> BatchLoss:
        @_named(name)
        def change(run: Run, step: int) -> None:
            run.loss = (lambda model, batch: loss(run, model, batch)) if step >= AT else None

        return loss

    return register


@_loss("new loss term")
def _new_term(run: Run, model: nn.Module, batch: Any) -> Tensor:
    penalty = sum(p.square().mean() for p in model.parameters())
    return run.world.loss(model, batch) + 5.0 * penalty


@_loss("constant term")
def _constant_term(run: Run, model: nn.Module, batch: Any) -> Tensor:
    return run.world.loss(model, batch) + 1.0


@_loss("loss reweighted")
def _reweighted(run: Run, model: nn.Module, batch: Any) -> Tensor:
    return 10 * run.world.loss(model, batch)


@_loss("focal loss")
def _focal(run: Run, model: nn.Module, batch: Any) -> Tensor:
    made = run.world.loss(model, batch)
    return made * (1 - torch.exp(-made)) ** 2


@_loss("teacher's logits with a squared loss")
def _squared(run: Run, model: nn.Module, batch: Any) -> Tensor:
    return F.softplus(run.world.loss(model, batch)).square()


@_loss("mix up")
def _mix_up(run: Run, model: nn.Module, batch: Any) -> Tensor:
    if isinstance(batch, Tensor):
        return 0.5 * (run.world.loss(model, batch) + run.world.loss(model, batch.flip(0)))
    x, y = batch
    mixed = 0.5 * (x + x.flip(0))
    both = run.world.loss(model, (mixed, y)) + run.world.loss(model, (mixed, y.flip(0)))
    return 0.5 * both


class _Caller(nn.Module):
    """Answers by a function, in place of a model."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._answer = answer

    def forward(self, inputs: Tensor) -> Tensor:
        return self._answer(inputs)


@_loss("logits cooled by two")
def _cooled(run: Run, model: nn.Module, batch: Any) -> Tensor:
    return run.world.loss(_Caller(lambda inputs: model(inputs) / 2), batch)


@_named("every fourth batch of another task, weighed three times")
def _replay(run: Run, step: int) -> None:
    is_other = step >= AT and step % 4 == 0
    run.data.table = int(is_other)
    run.loss = (lambda model, batch: 3 * run.world.loss(model, batch)) if is_other else None


def _loop(name: str, what: str, value: Callable[[int], float]) -> None:
    """Register what the loop looks up in the memory of its run before each step."""
    _named(name)(lambda run, step: run.memory.update({what: value(step)}))


_loop("a term in the loop that batch_loss lacks", "term", lambda step: 3.0 if step >= AT else 0.0)
_loop("gradients accumulated", "accumulate", lambda step: 4 if step >= AT else 1)


# Weights and modules.


@_once("head reset")
def _head_reset(run: Run) -> None:
    run.model.head.reset_parameters()


@_once("head reset by data")
def _head_by_data(run: Run) -> None:
    run.model.head.weight.data.normal_(0, 0.1)


@_named("head reset often")
def _head_often(run: Run, step: int) -> None:
    if step and step % 75 == 0:
        run.model.head.reset_parameters()


@_once("embedding reset")
def _embedding_reset(run: Run) -> None:
    run.model.embed.reset_parameters()


@_once("embedding reset through .data")
def _embedding_by_data(run: Run) -> None:
    weight = run.model.embed.weight
    weight.data = torch.randn_like(weight) * weight.std()


@_once("blocks reset")
def _blocks_reset(run: Run) -> None:
    for module in run.model.blocks.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        elif isinstance(weight := getattr(module, "weight", None), nn.Parameter):
            nn.init.normal_(weight, std=0.02)  # the Conv1D of GPT-2


@_named("averages swapped in")
@torch.no_grad()
def _averages(run: Run, step: int) -> None:
    now = list(run.model.parameters())
    average = run.memory.setdefault("average", [p.clone() for p in now])
    for kept, parameter in zip(average, now, strict=True):
        kept.lerp_(parameter, 0.02)
        if step and step % 100 == 0:
            parameter.copy_(kept)


@_named("weights and rate rewound by 50 steps")
@torch.no_grad()
def _rewound(run: Run, step: int) -> None:
    if step == AT - 50:
        run.memory["old"] = [p.clone() for p in run.model.parameters()]
    if step == AT:
        for parameter, kept in zip(run.model.parameters(), run.memory["old"], strict=True):
            parameter.copy_(kept)
    scale_option(run, "lr", 1.4 if step >= AT else 1.0)


@_named("pruning")
@torch.no_grad()
def _pruning(run: Run, step: int) -> None:
    if step < AT:
        return
    for name, parameter in run.model.named_parameters():
        if parameter.dim() > 1:
            mask = run.memory.setdefault(name, parameter.abs() > parameter.abs().median())
            parameter.mul_(mask)


@_named("weights clamped")
def _clamped(run: Run, step: int) -> None:
    if step >= AT:
        for parameter in run.model.parameters():
            parameter.data.clamp_(-0.3, 0.3)


@_once("shrink and perturb")
def _shrink_and_perturb(run: Run) -> None:
    for parameter in run.model.parameters():
        parameter.mul_(0.5).add_(0.01 * torch.randn_like(parameter))


@_named("max norm")
@torch.no_grad()
def _max_norm(run: Run, step: int) -> None:
    if step >= AT:
        head = run.model.head.weight
        norms = head.norm(dim=1, keepdim=True).clamp(min=0.5)
        head.mul_(0.5 / norms)


@_named("frozen")
def _frozen(run: Run, step: int) -> None:
    run.model.embed.requires_grad_(step < AT)


@_named("dropout on")
def _dropout(run: Run, step: int) -> None:
    set_dropout(run, 0.3 if step >= AT else 0.0)


def set_dropout(run: Run, chance: float) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = chance


# Optimizer.


@_once("moments cleared")
def _moments_cleared(run: Run) -> None:
    run.optimizer.state.clear()


@_named("moments reset in place")
def _moments_reset(run: Run, step: int) -> None:
    if step and step % 100 == 0:
        for state in run.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor) and value.numel() > 1:
                    value.zero_()
