"""What befalls a run of the trial: faults, and what people change on purpose, not announced.

The purposeful changes are those of `scripts/bench recover phases`, and more: the traps of the study
(data that goes and comes back, cycles, layers that are reset, decay x300), and some that were
written down before any of them was run.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.recover.phases import PHASES, Phase
from benchmarks.recover.worlds import Run

AT = 200
"""The first step of a purposeful change, as in `scripts/bench recover phases`."""

FAULTS: dict[str, Phase] = {}
PURPOSES: dict[str, Phase] = dict(PHASES)
BY_ITSELF_OR_ASKED = ("head negated", "half of the weights of step 50", "weights shuffled")
"""Faults that write weights as code does: proposed at most."""


def _named(kinds: dict[str, Phase], name: str) -> Callable[[Phase], Phase]:
    def register(change: Phase) -> Phase:
        kinds[name] = change
        return change

    return register


def _during(run: Run, step: int, length: int) -> bool:
    onset = run.memory["onset"]
    return bool(onset <= step < onset + length)


def _scale(run: Run, name: str, factor: float) -> None:
    """Multiply an option of every group, as it was before the first call."""
    first = run.memory.setdefault(name, [group[name] for group in run.optimizer.param_groups])
    for group, value in zip(run.optimizer.param_groups, first, strict=True):
        group[name] = value * factor


def _rate(factor: float, length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        _scale(run, "lr", factor if _during(run, step, length) else 1.0)

    return change


for _factor, _length in ((10, 5), (30, 5), (30, 12), (100, 3), (100, 5), (1000, 3)):
    FAULTS[f"LR x{_factor} for {_length}"] = _rate(_factor, _length)
FAULTS["LR x8 for good"] = _rate(8, 10_000)
FAULTS["LR x30 for good"] = _rate(30, 10_000)


def _decay(factor: float, length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        _scale(run, "weight_decay", factor if _during(run, step, length) else 1.0)

    return change


FAULTS["decay x1000 for 5"] = _decay(1e3, 5)
FAULTS["decay x1e4 for 5"] = _decay(1e4, 5)


@_named(FAULTS, "gradient negated for 20")
def _negated(run: Run, step: int) -> None:
    run.memory["gradient factor"] = -1.0 if _during(run, step, 20) else 1.0


@_named(FAULTS, "gradient x1000 past the clip")
def _huge(run: Run, step: int) -> None:
    run.memory["gradient factor"] = 1000.0 if _during(run, step, 1) else 1.0


@_named(FAULTS, "random labels for 20")
def _random_labels(run: Run, step: int) -> None:
    run.data.noise = 1.0 if _during(run, step, 20) else 0.0


@_named(FAULTS, "beta2 0.5, beta1 0 for 20")
def _betas(run: Run, step: int) -> None:
    for group in run.optimizer.param_groups:
        kept = run.memory.setdefault("betas", group.get("betas"))
        if kept is not None:
            group["betas"] = (0.0, 0.5) if _during(run, step, 20) else kept


@_named(FAULTS, "head negated")
def _head(run: Run, step: int) -> None:
    if _during(run, step, 1):
        run.model.head.weight.detach().numpy()[...] *= -1


@_named(FAULTS, "half of the weights of step 50")
def _stale(run: Run, step: int) -> None:
    if step == 50:
        run.memory["stale"] = [p.detach().clone() for p in run.model.parameters()]
    if _during(run, step, 1):
        old = run.memory["stale"]
        for parameter, kept in list(zip(run.model.parameters(), old, strict=True))[::2]:
            parameter.detach().numpy()[...] = kept.numpy()


@_named(FAULTS, "weights shuffled")
def _shuffled(run: Run, step: int) -> None:
    if _during(run, step, 1):
        weight = run.model.head.weight.detach().numpy()
        np.random.default_rng(step).shuffle(weight)


# What the study found hard, and what was written down without knowledge of the rule.


@_named(PURPOSES, "alternating every 8")
def _alternating(run: Run, step: int) -> None:
    run.data.table = int(step >= AT and step // 8 % 2)


def _easy(length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        run.data.temperature = 0.3 if AT <= step < AT + length else 1.0

    return change


PURPOSES["easy for 12, back"] = _easy(12)
PURPOSES["easy for 30, back"] = _easy(30)


def _raised(factor: float, length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        _scale(run, "lr", factor if AT <= step < AT + length else 1.0)

    return change


PURPOSES["LR x4 for good"] = _raised(4, 10_000)
PURPOSES["LR x4 for 20, back"] = _raised(4, 20)
PURPOSES["LR x10 for 40, back"] = _raised(10, 40)


@_named(PURPOSES, "LR cycle of 60")
def _cycle(run: Run, step: int) -> None:
    _scale(run, "lr", 1 + 3 * (1 - abs(step % 60 - 30) / 30) if step >= AT else 1.0)


@_named(PURPOSES, "decay x300")
def _decay_for_good(run: Run, step: int) -> None:
    _scale(run, "weight_decay", 300.0 if step >= AT else 1.0)


@_named(PURPOSES, "blocks reset")
def _blocks_reset(run: Run, step: int) -> None:
    if step == AT:
        for module in run.model.blocks.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()


@_named(PURPOSES, "embedding reset through .data")
def _embedding_reset(run: Run, step: int) -> None:
    if step == AT:
        weight = run.model.embed.weight
        weight.data = torch.randn_like(weight) * weight.std()


@_named(PURPOSES, "other domain for 40, back")
def _visit(run: Run, step: int) -> None:
    run.data.table = int(AT <= step < AT + 40)


@_named(PURPOSES, "random labels now and then")
def _now_and_then(run: Run, step: int) -> None:
    run.data.noise = 1.0 if step >= AT and step % 10 == 0 else 0.0


@_named(PURPOSES, "inputs blurred by noise in the weights")
def _weight_noise(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        noisy = {n: p + 0.05 * p.std() * torch.randn_like(p) for n, p in model.named_parameters()}
        buffers = dict(model.named_buffers())

        class Caller(nn.Module):
            """Calls the model with noise in its weights."""

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                """Return what it makes of the inputs."""
                made: torch.Tensor = torch.func.functional_call(
                    model, {**noisy, **buffers}, (inputs,)
                )
                return made

        return run.world.loss(Caller(), batch)

    run.loss = loss if step >= AT else None


@_named(PURPOSES, "focal loss")
def _focal(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        made = run.world.loss(model, batch)
        return made * (1 - torch.exp(-made)) ** 2

    run.loss = loss if step >= AT else None


@_named(PURPOSES, "a term in the loop that batch_loss lacks")
def _loop_term(run: Run, step: int) -> None:
    run.memory["term"] = 3.0 if step >= AT else 0.0


@_named(PURPOSES, "the loop maximises entropy, batch_loss does not know")
def _unlearn(run: Run, step: int) -> None:
    run.memory["sign"] = -0.2 if AT <= step < AT + 60 else 1.0


@_named(PURPOSES, "only the head is trained")
def _only_head(run: Run, step: int) -> None:
    for name, parameter in run.model.named_parameters():
        parameter.requires_grad_(step < AT or name.startswith("head"))


@_named(PURPOSES, "batch x8 for 20, back")
def _large(run: Run, step: int) -> None:
    run.data.size = 64 if AT <= step < AT + 20 else 8


@_named(PURPOSES, "sequences or pictures of another kind each 30 steps")
def _curriculum(run: Run, step: int) -> None:
    run.data.temperature = (1.0, 0.5, 0.25)[step // 30 % 3] if step >= AT else 1.0


@_named(PURPOSES, "teacher's logits with a squared loss")
def _squared(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        made = run.world.loss(model, batch)
        return F.softplus(made).square()

    run.loss = loss if step >= AT else None


@_named(PURPOSES, "momentum off for 40, back")
def _no_momentum(run: Run, step: int) -> None:
    for group in run.optimizer.param_groups:
        for name, off in (("betas", (0.0, 0.95)), ("momentum", 0.0)):
            if name in group:
                kept = run.memory.setdefault(name, group[name])
                group[name] = off if AT <= step < AT + 40 else kept
