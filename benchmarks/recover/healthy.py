"""Healthy loops of many kinds: a run in `recover` has the bits of the same run in `protect`."""

import copy
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import trimtab
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish
from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory, read_journal

STEPS = 45
WIDTH = 8


@dataclass
class Trained:
    """What a loop has made: all of it must have the same bits in both modes."""

    values: list[Any] = field(default_factory=list)

    def keep(self, *values: Any) -> None:
        """Keep numbers, tensors and modules as they are now."""
        for value in values:
            if isinstance(value, nn.Module):
                self.keep(*value.state_dict().values())
            elif isinstance(value, optim.Optimizer):
                states = [value.state[p] for group in value.param_groups for p in group["params"]]
                self.keep(*(one for state in states for one in state.values()))
            elif isinstance(value, torch.Tensor):
                self.values.append(value.detach().clone())
            elif isinstance(value, int | float):
                self.values.append(float(value))

    def same(self, other: "Trained") -> bool:
        """Return whether all values have the same bits."""
        pairs = zip(self.values, other.values, strict=False)
        return len(self.values) == len(other.values) and all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
        )


Watch = Callable[..., Any]
"""`trimtab.watch` with its mode and folder."""

Loop = Callable[[int, Watch], Trained]
LOOPS: dict[str, Loop] = {}


def loop(train: Loop) -> Loop:
    """Register a loop by the name of its function."""
    LOOPS[train.__name__.replace("_", " ")] = train
    return train


def _model() -> Any:
    return nn.Sequential(
        nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)
    )


def _points(steps: int = STEPS, size: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Draw from torch's global generator, so that a number drawn by the guard would show."""
    for _ in range(steps):
        x = torch.randn(size, WIDTH)
        yield x, x[:, :4].argmax(1)


def _train(watch: Watch, make: Callable[[Any], optim.Optimizer], **options: Any) -> Trained:
    """Train the usual loop."""
    model, made = _model(), Trained()
    optimizer = make(model.parameters())
    with watch(model, optimizer, **options) as guard:
        for x, y in _points():
            loss = F.cross_entropy(model(x), y)
            guard.record(loss=loss, batch=(x, y))
            loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer, float(torch.rand(())))
    return made


@loop
def plain(seed: int, watch: Watch) -> Trained:
    return _train(watch, lambda p: optim.AdamW(p, 1e-2))


@loop
def foreach(seed: int, watch: Watch) -> Trained:
    return _train(watch, lambda p: optim.Adam(p, 1e-2, foreach=True, amsgrad=True))


@loop
def momentum(seed: int, watch: Watch) -> Trained:
    return _train(watch, lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True))


@loop
def no_fused_form(seed: int, watch: Watch) -> Trained:
    return _train(watch, lambda p: optim.RMSprop(p, 1e-3))


@loop
def accumulation(seed: int, watch: Watch) -> Trained:
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as guard:
        for number, (x, y) in enumerate(_points(4 * STEPS, 4)):
            loss = F.cross_entropy(model(x), y)
            guard.record(loss=loss)
            (loss / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            made.keep(loss)
    made.keep(model, optimizer)
    return made


@loop
def policy_gradient(seed: int, watch: Watch) -> Trained:
    """REINFORCE with a baseline: the data depends on every weight so far."""
    policy, made = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), Trained()
    optimizer = optim.Adam(policy.parameters(), 1e-2)
    world, baseline = np.random.default_rng(seed), 0.0
    with watch(policy, optimizer) as guard:
        for _ in range(STEPS):
            state, losses, rewards = world.normal(size=4), [], []
            for _ in range(8):
                seen = torch.tensor(state, dtype=torch.float32)
                choice = torch.distributions.Categorical(logits=policy(seen))
                action = choice.sample()
                reward = float(state[int(action)] - 0.1 * np.square(state).sum())
                state = 0.9 * state + world.normal(size=4) * 0.3 + 0.1 * int(action)
                losses.append(-choice.log_prob(action) * (reward - baseline))
                rewards.append(reward)
            baseline = 0.9 * baseline + 0.1 * float(np.mean(rewards))
            loss = torch.stack(losses).sum()
            guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            made.keep(loss, baseline)
    made.keep(policy, optimizer)
    return made


@loop
def gan(seed: int, watch: Watch) -> Trained:
    """Two optimizers, and a graph over both steps."""
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, WIDTH))
    judge, made = nn.Sequential(nn.Linear(WIDTH, 16), nn.LeakyReLU(), nn.Linear(16, 1)), Trained()
    first = optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    second = optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.999))
    with watch(nn.ModuleList([maker, judge]), [first, second]) as guard:
        for _ in range(STEPS):
            fake = maker(torch.randn(8, 4))
            real = torch.randn(8, WIDTH) + 1
            loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(real)).mean()
            first.zero_grad()
            loss.backward()
            guard.record(loss=loss)
            first.step()
            second.zero_grad()
            F.softplus(-judge(fake)).mean().backward()
            second.step()
            made.keep(loss)
    made.keep(maker, judge, first, second)
    return made


@loop
def epochs_with_code_between(seed: int, watch: Watch) -> Trained:
    """A schedule by epoch, an evaluation, a checkpoint and an early-stopping counter."""
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    schedule, best, patience = StepLR(optimizer, 1, gamma=0.7), float("inf"), 0
    with watch(model, optimizer) as guard:
        for _ in range(5):
            for x, y in _points(9):
                loss = F.cross_entropy(model(x), y)
                guard.record(loss=loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            model.eval()
            with torch.no_grad():
                held = float(np.mean([float(F.cross_entropy(model(x), y)) for x, y in _points(3)]))
            model.train()
            patience = 0 if held < best else patience + 1
            best = min(best, held)
            saved = copy.deepcopy({"model": model.state_dict(), "o": optimizer.state_dict()})
            made.keep(held, patience, optimizer.param_groups[0]["lr"], *saved["model"].values())
    made.keep(model, optimizer)
    return made


@loop
def two_loaders(seed: int, watch: Watch) -> Trained:
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as guard:
        for (x, y), (u, _) in zip(_points(), _points(size=16), strict=True):
            agreement = (model(u) - model(u + 0.1 * torch.randn_like(u))).square().mean()
            loss = F.cross_entropy(model(x), y) + agreement
            guard.record(loss=loss, batch={"labelled": (x, y), "unlabelled": u})
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer)
    return made


class OwnBatch:
    """A batch of a class that torch knows nothing about, such as a TensorDict."""

    __slots__ = ("_parts",)

    def __init__(self, **parts: torch.Tensor) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._parts[name]


@loop
def batch_of_an_own_class(seed: int, watch: Watch) -> Trained:
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)

    def batch_loss(batch: OwnBatch) -> torch.Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    with watch(model, optimizer, batch_loss=batch_loss) as guard:
        for x, y in _points():
            batch = OwnBatch(x=x, y=y)
            loss = batch_loss(batch)
            guard.record(loss=loss, batch=batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer)
    return made


@loop
def reused_buffers(seed: int, watch: Watch) -> Trained:
    """A loader that writes every batch into the same memory, and a loop that changes it."""
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    space, labels = np.zeros((8, WIDTH), np.float32), torch.zeros(8, dtype=torch.long)
    with watch(model, optimizer) as guard:
        for x, y in _points():
            space[:], labels[:] = x.numpy(), y
            batch = torch.from_numpy(space)
            guard.record(batch=(batch, labels))
            space *= 0.5
            loss = F.cross_entropy(model(batch), labels)
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer)
    return made


@loop
def loss_scale(seed: int, watch: Watch) -> Trained:
    """A GradScaler whose scale overflows at first, and again as it grows."""
    model, made = _model(), Trained()
    optimizer = optim.SGD(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=7)
    with watch(model, optimizer, state={"scaler": scaler}) as guard:
        for x, y in _points():
            loss = F.cross_entropy(model(x), y)
            guard.record(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            made.keep(loss, scaler.get_scale())
    made.keep(model, optimizer)
    return made


@loop
def moving_average(seed: int, watch: Watch) -> Trained:
    """An EMA that is swapped in now and then for an evaluation."""
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    with watch(model, optimizer, state={"ema": average}) as guard:
        for number, (x, y) in enumerate(_points()):
            loss = F.cross_entropy(model(x), y)
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            if number % 15 == 14:
                kept = copy.deepcopy(model.state_dict())
                model.load_state_dict(average.module.state_dict())
                made.keep(model(x))
                model.load_state_dict(kept)
            made.keep(loss)
    made.keep(model, optimizer, average)
    return made


@loop
def several_optimizers(seed: int, watch: Watch) -> Trained:
    """One for matrices, one for the rest, and a sparse one for the embedding."""
    embed, model, made = nn.Embedding(32, WIDTH, sparse=True), _model(), Trained()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizers: list[optim.Optimizer] = [
        optim.AdamW(matrices, 1e-2),
        optim.SGD(rest, 1e-2, momentum=0.9),
        optim.SparseAdam(list(embed.parameters()), 1e-2),
    ]
    with watch(nn.ModuleList([embed, model]), optimizers) as guard:
        for _ in range(STEPS):
            tokens = torch.randint(0, 32, (8,))
            loss = F.cross_entropy(model(embed(tokens)), tokens % 4)
            guard.record(loss=loss)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            made.keep(loss)
    made.keep(embed, model, *optimizers)
    return made


@loop
def closure(seed: int, watch: Watch) -> Trained:
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as guard:
        for x, y in _points():

            def compute(x: torch.Tensor = x, y: torch.Tensor = y) -> Any:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                guard.record(loss=loss)
                loss.backward()
                return loss

            made.keep(optimizer.step(compute))
    made.keep(model, optimizer)
    return made


@loop
def lbfgs(seed: int, watch: Watch) -> Trained:
    """Is refused by both: several closures in a step."""
    model, made = nn.Linear(WIDTH, 4), Trained()
    optimizer = optim.LBFGS(model.parameters(), 0.1)
    try:
        watch(model, optimizer)
    except ConfigError:
        made.keep(1, model)
    return made


class Counting(nn.Module):
    """Carries a hidden state and a counter in attributes, and draws from its own generator."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(WIDTH, 16), nn.Linear(16, 4)
        self.dice = torch.Generator().manual_seed(seed)
        self.hidden, self.calls = torch.zeros(8, 16), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        noise = 0.1 * torch.randn(x.shape, generator=self.dice)
        self.hidden = self.cell(x + noise, self.hidden.detach())
        logits: torch.Tensor = self.head(self.hidden)
        return logits


@loop
def carried_state(seed: int, watch: Watch) -> Trained:
    model, made = Counting(seed), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as guard:
        for x, y in _points():
            loss = F.cross_entropy(model(x), y)
            guard.record(loss=loss, batch=(x, y))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer, model.calls, model.hidden)
    return made


@loop
def packed_sequences(seed: int, watch: Watch) -> Trained:
    rnn, head, made = nn.GRU(WIDTH, 16), nn.Linear(16, 4), Trained()
    both = nn.ModuleList([rnn, head])
    optimizer = optim.AdamW(both.parameters(), 1e-2)
    with watch(both, optimizer) as guard:
        for number in range(STEPS):
            parts = [torch.randn(1 + (number + k) % 5, WIDTH) for k in range(4)]
            batch: PackedSequence = pack_sequence(parts, enforce_sorted=False)
            _, last = rnn(batch)
            loss = F.cross_entropy(head(last[0]), torch.tensor([len(p) % 4 for p in parts]))
            guard.record(loss=loss, batch=batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(both, optimizer)
    return made


@loop
def guard_steps(seed: int, watch: Watch) -> Trained:
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as guard:
        for step in guard.steps(list(_points(2 * STEPS)), 2):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                guard.record(loss=loss)
                (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss, step.number)
    made.keep(model, optimizer)
    return made


@loop
def weights_written_past_autograd(seed: int, watch: Watch) -> Trained:
    """A clamp and a padding row through `.data` at each step, with warm restarts."""
    embed, model, made = nn.Embedding(16, WIDTH), _model(), Trained()
    both = nn.ModuleList([embed, model])
    optimizer = optim.AdamW(both.parameters(), 1e-2)
    schedule = CosineAnnealingWarmRestarts(optimizer, 10)
    with watch(both, optimizer) as guard:
        for _ in range(STEPS):
            tokens = torch.randint(0, 16, (8,))
            loss = F.cross_entropy(model(embed(tokens)), tokens % 4)
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            embed.weight.data[0] = 0
            model[0].weight.data.clamp_(-0.3, 0.3)
            made.keep(loss)
    made.keep(both, optimizer)
    return made


@loop
def other_data_with_batch_loss(seed: int, watch: Watch) -> Trained:
    """The labels change, so experiments are made: forward passes that must leave no trace."""
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)

    def batch_loss(batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    with watch(model, optimizer, batch_loss=batch_loss) as guard:
        for number, (x, y) in enumerate(_points(2 * STEPS, 32)):
            labels = y if number < 55 else (y + 1) % 4
            loss = batch_loss((x, labels))
            guard.record(loss=loss, batch=(x, labels))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer, float(torch.rand(())))
    return made


@loop
def recomputed_activations(seed: int, watch: Watch) -> Trained:
    model, made = _model(), Trained()
    optimizer = optim.AdamW(model.parameters(), 1e-2)
    with watch(model, optimizer) as guard:
        for x, y in _points():
            made_logits: Any = checkpoint(model, x, use_reentrant=False)
            loss = F.cross_entropy(made_logits, y)
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.keep(loss)
    made.keep(model, optimizer)
    return made


def measure(name: str, seed: int) -> dict[str, Any]:
    """Train a loop in both modes; return whether the bits are the same, and what was undone."""
    trained, undone = [], 0
    for mode in ("protect", "recover"):
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(seed)
            watch = partial(trimtab.watch, run_dir=folder, mode=mode)
            trained.append(LOOPS[name](seed, watch))
            if any(Path(folder).iterdir()):  # else it was refused
                events = read_journal(RunDirectory(Path(folder))).block.events
                undone += sum(event.kind == "undo" for event in events)
    return {"same": trained[0].same(trained[1]), "undone": undone, "size": len(trained[0].values)}


def publish_healthy(seeds: int, folder: str | None) -> None:
    """Train all loops with all seeds."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(folder or spare))
        found = {
            name: [
                cache.get(f"{name} {seed}", partial(measure, name, seed)) for seed in range(seeds)
            ]
            for name in LOOPS
        }
    rows = [
        (name, len(runs), sum(run["same"] for run in runs), sum(run["undone"] for run in runs))
        for name, runs in found.items()
    ]
    total = sum(row[1] for row in rows)
    same = sum(row[2] for row in rows)
    wrong = [name for name, runs, equal, undone in rows if equal < runs or undone]
    publish(
        "Recover: healthy loops",
        f"scripts/bench recover healthy --seeds {seeds}",
        f"{len(LOOPS)} kinds of loop, {seeds} seeds: {same} of {total} runs in `recover` have the "
        "bits of the same run in `protect`: every loss, all weights, buffers and optimizer state, "
        "scale, counters, and the next random number. Bar: all, and nothing undone. Loops: "
        f"{', '.join(LOOPS)}. With other bits or an undo: {', '.join(wrong) or 'none'}.",
        [("healthy runs with the bits of protect", f"{same} of {total}", "all")],
    )
