"""What people change on purpose, not announced: nothing of it may be undone, held or stopped."""

import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import trimtab
from benchmarks.recover.worlds import WORLDS, Run, World
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table
from trimtab.journal import RunDirectory, read_journal

STEPS, AT = 320, 200
FIRST_SEED = 200

Phase = Callable[[Run, int], None]
"""Is called before every step, with its number."""

PHASES: dict[str, Phase] = {}


def phase(change: Phase) -> Phase:
    """Register a phase by the name of its function."""
    PHASES[change.__name__.replace("_", " ")] = change
    return change


def from_then_on(run: Run, step: int) -> bool:
    """Return whether the second stage of the run has begun."""
    return step >= AT


# Learning rate and other options.


def _set(run: Run, **options: object) -> None:
    for group in run.optimizer.param_groups:
        group.update({name: value for name, value in options.items() if name in group})


def _rate(run: Run, factor: float) -> None:
    first = run.memory.setdefault("rate", run.optimizer.param_groups[0]["lr"])
    _set(run, lr=first * factor)


@phase
def nothing(run: Run, step: int) -> None:
    """The control."""


@phase
def warm_restarts(run: Run, step: int) -> None:
    _rate(run, 1e-3 + 3 * 0.5 * (1 + math.cos(math.pi * (step % 100) / 100)))


@phase
def lr_up_for_good(run: Run, step: int) -> None:
    _rate(run, 5.0 if step >= AT else 1.0)


@phase
def lr_finder(run: Run, step: int) -> None:
    _rate(run, 10 ** (-2 + 3 * (step - AT) / 100) if AT <= step < AT + 100 else 1.0)


@phase
def lr_decay_and_better_data(run: Run, step: int) -> None:
    _rate(run, max(0.0, 1 - max(step - AT, 0) / 200))
    run.data.temperature = 0.5 if step >= AT else 1.0


@phase
def cyclical_momentum(run: Run, step: int) -> None:
    beta = 0.85 + 0.1 * (step % 50) / 50
    _set(run, betas=(beta, 0.999), momentum=beta)


@phase
def weight_decay_up(run: Run, step: int) -> None:
    _set(run, weight_decay=0.3 if step >= AT else 0.01)


@phase
def betas_changed(run: Run, step: int) -> None:
    if step >= AT:
        _set(run, betas=(0.9, 0.95), momentum=0.5)


# Data.


@phase
def other_data(run: Run, step: int) -> None:
    run.data.table = int(step >= AT)


@phase
def half_new_data(run: Run, step: int) -> None:
    run.data.table = 2 if step >= AT else 0


@phase
def new_source_joins(run: Run, step: int) -> None:
    run.data.table = int(step >= AT and step % 2)


@phase
def easy_then_real(run: Run, step: int) -> None:
    run.data.temperature = 0.2 if step < AT else 1.0


@phase
def noisy_labels(run: Run, step: int) -> None:
    run.data.noise = 0.3 if step >= AT else 0.0


@phase
def batch_ramp(run: Run, step: int) -> None:
    run.data.size = 2 if step < 100 else 8 if step < AT else 32


@phase
def batch_down(run: Run, step: int) -> None:
    run.data.size = 32 if step < AT else 2


@phase
def longer_sequences(run: Run, step: int) -> None:
    run.data.length = 8 if step < AT else 48


# Loss.


def _penalised(run: Run, factor: float) -> Callable[[nn.Module, Any], torch.Tensor]:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        penalty = sum(p.square().mean() for p in model.parameters())
        return run.world.loss(model, batch) + factor * penalty

    return loss


@phase
def new_loss_term(run: Run, step: int) -> None:
    run.loss = _penalised(run, 5.0) if step >= AT else None


@phase
def constant_term(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return run.world.loss(model, batch) + 1.0

    run.loss = loss if step >= AT else None


@phase
def loss_reweighted(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return 10 * run.world.loss(model, batch)

    run.loss = loss if step >= AT else None


@phase
def smoothing(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        made = run.world.loss(model, batch)
        return 0.8 * made + 0.2 * made.exp().log1p()

    run.loss = loss if step >= AT else None


@phase
def mix_up(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if isinstance(batch, torch.Tensor):
            return 0.5 * (run.world.loss(model, batch) + run.world.loss(model, batch.flip(0)))
        x, y = batch
        mixed = 0.5 * (x + x.flip(0))
        both = run.world.loss(model, (mixed, y)) + run.world.loss(model, (mixed, y.flip(0)))
        return 0.5 * both

    run.loss = loss if step >= AT else None


@phase
def distillation(run: Run, step: int) -> None:
    if step == AT:
        teacher = run.world.model()
        teacher.load_state_dict(run.model.state_dict())
        run.memory["teacher"] = teacher.eval()
    if step < AT:
        return

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = batch[:, :-1] if isinstance(batch, torch.Tensor) else batch[0]
        with torch.no_grad():
            target = run.memory["teacher"](inputs)
        return run.world.loss(model, batch) + F.mse_loss(model(inputs), target)

    run.loss = loss


# Weights and modules.


@phase
def head_reset(run: Run, step: int) -> None:
    if step == AT:
        run.model.head.reset_parameters()


@phase
def head_reset_by_data(run: Run, step: int) -> None:
    if step == AT:
        run.model.head.weight.data.normal_(0, 0.1)


@phase
def head_reset_often(run: Run, step: int) -> None:
    if step and step % 75 == 0:
        run.model.head.reset_parameters()


@phase
def embedding_reset(run: Run, step: int) -> None:
    if step == AT:
        run.model.embed.reset_parameters()


@phase
def averages_swapped_in(run: Run, step: int) -> None:
    with torch.no_grad():
        now = list(run.model.parameters())
        average = run.memory.setdefault("average", [p.clone() for p in now])
        for kept, parameter in zip(average, now, strict=True):
            kept.lerp_(parameter, 0.02)
            if step and step % 100 == 0:
                parameter.copy_(kept)


@phase
def averages_by_data(run: Run, step: int) -> None:
    now = list(run.model.parameters())
    average = run.memory.setdefault("average", [p.data.clone() for p in now])
    for kept, parameter in zip(average, now, strict=True):
        kept.lerp_(parameter.data, 0.02)
        if step and step % 100 == 0:
            parameter.data.copy_(kept)


@phase
def pruning(run: Run, step: int) -> None:
    if step < AT:
        return
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            if parameter.dim() > 1:
                mask = run.memory.setdefault(name, parameter.abs() > parameter.abs().median())
                parameter.mul_(mask)


@phase
def padding_row_zeroed(run: Run, step: int) -> None:
    run.model.embed.weight.data[0] = 0


@phase
def weights_clamped(run: Run, step: int) -> None:
    if step >= AT:
        for parameter in run.model.parameters():
            parameter.data.clamp_(-0.3, 0.3)


@phase
def shrink_and_perturb(run: Run, step: int) -> None:
    if step == AT:
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.mul_(0.5).add_(0.01 * torch.randn_like(parameter))


@phase
def max_norm(run: Run, step: int) -> None:
    if step >= AT:
        with torch.no_grad():
            head = run.model.head.weight
            norms = head.norm(dim=1, keepdim=True).clamp(min=0.5)
            head.mul_(0.5 / norms)


@phase
def frozen(run: Run, step: int) -> None:
    run.model.embed.requires_grad_(step < AT)


@phase
def unfrozen(run: Run, step: int) -> None:
    run.model.embed.requires_grad_(step >= AT)


@phase
def dropout_on(run: Run, step: int) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3 if step >= AT else 0.0


@phase
def quantisation_aware(run: Run, step: int) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        coarse = {
            name: p + ((p * 16).round() / 16 - p).detach() for name, p in model.named_parameters()
        }
        buffers = dict(model.named_buffers())
        caller = _Functional(model, {**coarse, **buffers})
        return run.world.loss(caller, batch)

    run.loss = loss if step >= AT else None


class _Functional(nn.Module):
    """Calls a model with other tensors in place of its own."""

    def __init__(self, model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._model = [model]  # in a list, so that it is no part of this module
        self._tensors = tensors

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of them."""
        made: torch.Tensor = torch.func.functional_call(self._model[0], self._tensors, (inputs,))
        return made


# Optimizer.


@phase
def moments_cleared(run: Run, step: int) -> None:
    if step == AT:
        run.optimizer.state.clear()


@phase
def moments_reset_in_place(run: Run, step: int) -> None:
    if step and step % 100 == 0:
        for state in run.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.numel() > 1:
                    value.zero_()


@phase
def state_loaded(run: Run, step: int) -> None:
    if step == AT - 20:
        run.memory["saved"] = {
            "model": {name: value.clone() for name, value in run.model.state_dict().items()},
        }
    if step == AT:
        run.model.load_state_dict(run.memory["saved"]["model"])


@phase
def gradients_accumulated(run: Run, step: int) -> None:
    run.memory["accumulate"] = 4 if step >= AT else 1


@phase
def gradient_noise(run: Run, step: int) -> None:
    run.memory["noise"] = 0.1 if step >= AT else 0.0


def train(world: World, change: Phase, seed: int, mode: str, folder: str) -> float:
    """Train one run through a phase; returns its loss on data of the end, kept apart."""
    torch.manual_seed(seed)
    model = world.model()
    run = Run(world, model, world.optimizer(model.parameters()))
    stream = torch.Generator().manual_seed(1000 + seed)
    with trimtab.watch(
        model,
        run.optimizer,
        run_dir=folder,
        mode="recover",
        enabled=mode != "bare",
        batch_loss=run.batch_loss,
        config=None,
    ) as guard:
        for step in range(STEPS):
            change(run, step)
            accumulate = run.memory.get("accumulate", 1)
            for _ in range(accumulate):
                batch = world.draw(run.data, stream)
                loss = run.batch_loss(batch)
                guard.record(loss=loss, batch=batch)
                (loss / accumulate).backward()
            if noise := run.memory.get("noise"):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.add_(noise * torch.randn_like(parameter))
            guard.clip_grad_norm_(1.0)
            run.optimizer.step()
            run.optimizer.zero_grad()
    dice = torch.Generator().manual_seed(9)
    with torch.no_grad():
        return float(
            np.mean([float(run.batch_loss(world.draw(run.data, dice))) for _ in range(16)])
        )


def publish_phases(
    seeds: int, folder: str | None = None, only: Sequence[str] = (), num_bare: int = 1
) -> None:
    """Train every phase in every world, with a guard and for some seeds without one.

    Without an undo, the two differ by rounding and by what the gate discards or scales.
    """
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows: list[tuple[object, ...]] = []
    num_runs, num_undos, acts = 0, 0, []
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(folder or spare))
        for world in WORLDS:
            if only and world.name not in only:
                continue
            spread: list[float] = []
            differences: dict[str, float] = {}
            in_world = 0
            for name in PHASES:
                found = [
                    _outcome(cache, world, name, FIRST_SEED + seed, with_bare=seed < num_bare)
                    for seed in range(seeds)
                ]
                num_runs += len(found)
                undone = sum(outcome["undos"] for outcome in found)
                num_undos, in_world = num_undos + undone, in_world + undone
                if undone:
                    acts.append(f"{name} ({world.name}): {undone}")
                if name == "nothing":
                    spread = [outcome["guarded"] for outcome in found]
                bare = [outcome["bare"] for outcome in found if "bare" in outcome]
                pairs = zip(found, bare, strict=False)
                if bare:
                    differences[name] = float(np.mean([o["guarded"] - loss for o, loss in pairs]))
            worst = max(differences, key=lambda name: abs(differences[name]), default="")
            largest = f"{differences[worst]:+.4f} ({worst})" if worst else ""
            deviation = f"{np.std(spread):.3f}" if seeds > 1 else ""
            rows.append((world.name, len(PHASES) * seeds, in_world, largest, deviation))
    header = (
        *("run", "runs", "undos", "final loss minus bare, largest of the phases"),
        "its deviation over seeds",
    )
    publish(
        "Recover: what people do on purpose" + ("" if num_bare else ", undos alone"),
        f"scripts/bench recover phases --seeds {seeds} --bare {num_bare}",
        f"{len(PHASES)} phases in three runs of {STEPS} steps, {seeds} seeds, not announced, with "
        f"`batch_loss`: {num_runs} runs, undos in: {', '.join(acts) or 'none'}. Bar: at most one "
        "undo in 50 runs, no hold, no stop. Trained without a guard as well: "
        f"{num_bare} of the seeds. Phases: {', '.join(PHASES)}.\n\n{table(header, rows)}",
        [(f"undos of what was done on purpose, in {num_runs} runs", num_undos, "1 in 50 runs")],
    )


def _outcome(
    cache: ResultCache, world: World, name: str, seed: int, *, with_bare: bool
) -> dict[str, Any]:
    outcome = cache.get(f"{world.name} {name} {seed}", partial(_guarded, world, name, seed))
    if with_bare:
        bare = cache.get(f"{world.name} {name} {seed} bare", partial(_bare, world, name, seed))
        outcome = outcome | bare
    return outcome


def _guarded(world: World, name: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        final = train(world, PHASES[name], seed, "recover", folder)
        events = read_journal(RunDirectory(Path(folder))).block.events
    undos = [dict(event.facts) for event in events if event.kind == "undo"]
    return {"guarded": final, "undos": len(undos), "why": undos}


def _bare(world: World, name: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {"bare": train(world, PHASES[name], seed, "bare", folder)}
