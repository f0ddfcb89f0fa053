"""What befalls a run of the trial: faults, and what people change on purpose, not announced.

The purposeful changes are those of `scripts/bench recover phases`, which are older than the rule
of the trial, and more: the traps of the study (data that goes and comes back, cycles, sorted data,
layers that are reset, decay x300), some that were written down before any of them was run, and
practice from the lists of others (`practice.py`).
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
HEALTHY: dict[str, Phase] = {}
PURPOSES: dict[str, Phase] = {name: made for name, made in PHASES.items() if name != "nothing"}


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


_RATES = ((10, 5), (30, 5), (30, 12), (50, 8), (100, 3), (100, 5), (300, 2), (1000, 3))
for _factor, _length in _RATES:
    FAULTS[f"LR x{_factor} for {_length}"] = _rate(_factor, _length)
FAULTS["LR x8 for good"] = _rate(8, 10_000)
FAULTS["LR x30 for good"] = _rate(30, 10_000)


def _decay(factor: float, length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        _scale(run, "weight_decay", factor if _during(run, step, length) else 1.0)

    return change


FAULTS["decay x1000 for 5"] = _decay(1e3, 5)
FAULTS["decay x1e4 for 5"] = _decay(1e4, 5)
FAULTS["decay x1e4 for 12"] = _decay(1e4, 12)


def _gradient(factor: float, length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        run.memory["gradient factor"] = factor if _during(run, step, length) else 1.0

    return change


FAULTS["gradient negated for 5"] = _gradient(-1.0, 5)
FAULTS["gradient negated for 20"] = _gradient(-1.0, 20)
FAULTS["gradient x1000 past the clip"] = _gradient(1000.0, 1)
FAULTS["gradient x1000 for 3 past the clip"] = _gradient(1000.0, 3)


def _random_labels(length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        run.data.noise = 1.0 if _during(run, step, length) else 0.0

    return change


FAULTS["random labels for 20"] = _random_labels(20)
FAULTS["random labels for 50"] = _random_labels(50)


def _momentum(betas: tuple[float, float], length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        for group in run.optimizer.param_groups:
            name = "betas" if "betas" in group else "momentum"
            kept = run.memory.setdefault(name, group[name])
            other = betas if name == "betas" else betas[0]
            group[name] = other if _during(run, step, length) else kept

    return change


FAULTS["beta2 0.5, beta1 0 for 20"] = _momentum((0.0, 0.5), 20)
FAULTS["beta1 0.995 for 30"] = _momentum((0.995, 0.999), 30)


@_named(FAULTS, "second moments zeroed")
def _forgets(run: Run, step: int) -> None:
    if _during(run, step, 1):
        for state in run.optimizer.state.values():
            if "exp_avg_sq" in state:
                state["exp_avg_sq"].numpy()[...] = 0


def _written(name: str, write: Callable[[str, np.ndarray, np.random.Generator], None]) -> None:
    """Register a fault that writes weights past what torch counts, as a faulty kernel does."""

    @_named(FAULTS, name)
    def change(run: Run, step: int) -> None:
        if _during(run, step, 1):
            dice = np.random.default_rng(step)
            modules = {"head": run.model.head, "embed": run.model.embed, "blocks": run.model.blocks}
            for where, module in modules.items():
                for parameter in module.parameters():
                    write(where, parameter.detach().numpy(), dice)


def _negate_head(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    values *= -1 if where == "head" else 1


def _zero_first(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    values *= 0 if where == "embed" else 1


def _shuffle_blocks(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    if where == "blocks" and values.ndim > 1:
        dice.shuffle(values)


def _add_noise(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    values += (0.5 * values.std() * dice.standard_normal(values.shape)).astype(values.dtype)


def _round(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    step = max(float(np.abs(values).max()), 1e-12) / 4
    values[...] = np.round(values / step) * step


_written("head negated", _negate_head)
_written("first layer zeroed", _zero_first)
_written("blocks shuffled", _shuffle_blocks)
_written("noise of half a deviation in all weights", _add_noise)
_written("weights rounded to nine levels", _round)


def _stale(every: int) -> Phase:
    def change(run: Run, step: int) -> None:
        if step == 50:
            run.memory["stale"] = [p.detach().clone() for p in run.model.parameters()]
        if _during(run, step, 1):
            old = run.memory["stale"]
            for parameter, kept in list(zip(run.model.parameters(), old, strict=True))[::every]:
                parameter.detach().numpy()[...] = kept.numpy()

    return change


FAULTS["half of the weights of step 50"] = _stale(2)
FAULTS["all weights of step 50"] = _stale(1)


@_named(FAULTS, "weights shuffled")
def _shuffled(run: Run, step: int) -> None:
    if _during(run, step, 1):
        weight = run.model.head.weight.detach().numpy()
        np.random.default_rng(step).shuffle(weight)


# What the study found hard, and what was written down without knowledge of the rule.


def _in_turns(length: int) -> Phase:
    def change(run: Run, step: int) -> None:
        run.data.table = int(step >= AT and step // length % 2)

    return change


PURPOSES["alternating every 8"] = _in_turns(8)
PURPOSES["sorted, turns of 20"] = _in_turns(20)


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
            elif isinstance(weight := getattr(module, "weight", None), nn.Parameter):
                nn.init.normal_(weight, std=0.02)  # the Conv1D of GPT-2


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
    head = {id(parameter) for parameter in run.model.head.parameters()}
    for parameter in run.model.parameters():
        parameter.requires_grad_(step < AT or id(parameter) in head)


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


# Runs that nothing befalls, of several kinds.


@_named(HEALTHY, "as planned")
def _as_planned(run: Run, step: int) -> None:
    pass


@_named(HEALTHY, "constant rate")
def _constant(run: Run, step: int) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = run.memory["rate"] * min((step + 1) / 20, 1.0)


@_named(HEALTHY, "batches of a quarter")
def _small(run: Run, step: int) -> None:
    run.data.size = 2


@_named(HEALTHY, "dropout")
def _dropout(run: Run, step: int) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
