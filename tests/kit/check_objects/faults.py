"""Faults in real small models, each with the id of the check that must find it."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from tests.kit.check_objects.architectures import STEPS, optimizer_for, scheduler_for, text
from tests.kit.check_objects.small_gpt import Options, SmallGpt, next_token_loss
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

Setup = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, what finds it, and how it is planted."""

    id: str
    what: str
    make: Callable[[], Setup]


def healthy(options: Options | None = None) -> Setup:
    """Return a run without a fault."""
    torch.manual_seed(0)
    return with_model(SmallGpt(options))


def with_model(model: nn.Module, lr: float = 1e-3) -> Setup:
    """Return the objects of a run around a model."""
    optimizer = optimizer_for(model, lr)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler_for(optimizer),
        "loader": text(),
        "loss": next_token_loss,
        "steps": STEPS,
        "clip_norm": 1.0,
    }


def in_model(**options: Any) -> Callable[[], Setup]:
    return lambda: healthy(replace(Options(), **options))


def changed(change: Callable[[Setup], None]) -> Callable[[], Setup]:

    def make() -> Setup:
        setup = healthy()
        change(setup)
        return setup

    return make


def with_weights(change: Callable[[Any], Any]) -> Callable[[], Setup]:
    """Return a healthy run whose weights are changed without a graph."""

    def make() -> Setup:
        setup = healthy()
        with torch.no_grad():
            change(setup["model"])
        return setup

    return make


def with_schedule(share: Callable[[int], float]) -> Callable[[], Setup]:
    """Return a run with a learning rate of its own."""

    def change(setup: Setup) -> None:
        optimizer = optimizer_for(setup["model"])
        setup["optimizer"] = optimizer
        setup["scheduler"] = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    return changed(change)


class Forgetful:
    """A scheduler that counts steps and does not save its count."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.count = 0
        self._set()

    def _set(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min((self.count + 1) / 40, math.exp(-self.count / 200))

    def step(self) -> None:
        self.count += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"count": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Tokens(Dataset[dict[str, Tensor]]):
    """Rows of tokens."""

    def __init__(self, num_rows: int = 64) -> None:
        batches = text(num_batches=num_rows // 8)
        self.rows = torch.cat([batch["input_ids"] for batch in batches])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[at], "labels": self.rows[at].clone()}


class Unsplit(IterableDataset[dict[str, Tensor]]):
    """Every worker reads all rows."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        tokens = Tokens()
        return (tokens[at] for at in range(len(tokens)))


class Restarting:
    """A loader whose saved state forgets the position."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        batches = text()
        while self.at < len(batches):
            self.at += 1
            yield batches[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = 0


class SameOrder:
    """A loader that shuffles with the same seed at each epoch."""

    def __init__(self) -> None:
        self._batches = text(num_batches=8)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(3))
        return (self._batches[at] for at in order.tolist())


def _summed(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum") / 256


def _unshifted(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def _shifted_twice(model: nn.Module, batch: Any) -> Tensor:
    logits = model(batch["input_ids"])[:, :-2].flatten(0, 1)
    return F.cross_entropy(logits, batch["labels"][:, 2:].flatten())


def _scaled_down(model: nn.Module, batch: Any) -> Tensor:
    return next_token_loss(model, batch) / 4


def _not_a_number(model: nn.Module, batch: Any) -> Tensor:
    chances: Tensor = model(batch["input_ids"]).softmax(-1)
    return -(chances - chances.detach()).log().mean()


def _ragged(setup: Setup) -> None:
    batches = text()
    for batch in batches:
        batch["labels"][:2, 4:] = -100
    setup["loader"] = batches
    # Rows that are easy beside rows that are hard, so that their weight shows.
    with torch.no_grad():
        setup["model"].head.weight.mul_(10)


def _freeze_one(setup: Setup) -> None:
    setup["model"].blocks[2].up.weight.requires_grad_(False)


def _old_model(setup: Setup) -> None:
    setup["model"] = copy.deepcopy(setup["model"])


def _left_out(setup: Setup) -> None:
    model = setup["model"]
    kept = [p for name, p in model.named_parameters() if "position" not in name]
    setup["optimizer"] = torch.optim.AdamW(kept, lr=1e-3, weight_decay=0.0)
    setup["scheduler"] = scheduler_for(setup["optimizer"])


def _decay_all(setup: Setup) -> None:
    setup["optimizer"] = torch.optim.AdamW(
        setup["model"].parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1
    )
    setup["scheduler"] = scheduler_for(setup["optimizer"])


def _in_bf16(setup: Setup) -> None:
    model = setup["model"].bfloat16()
    setup.update(with_model(model, lr=3e-6))


def _slow(setup: Setup) -> None:
    setup.update(with_model(setup["model"], lr=1e-9))


def _workers() -> Setup:
    setup = healthy()
    setup["loader"] = DataLoader(Unsplit(), batch_size=8, num_workers=2)
    return setup


def _set(name: str, value: Callable[[], Any]) -> Callable[[], Setup]:
    return changed(lambda setup: setup.update({name: value()}))


FAULTS = (
    Planted("PF001", "a logarithm of 0 in the loss", _set("loss", lambda: _not_a_number)),
    Planted("PF002", "an output layer of std 0.5", with_weights(lambda m: m.head.weight.mul_(25))),
    Planted("PF002", "a loss divided by 4 micro-batches", _set("loss", lambda: _scaled_down)),
    Planted("PF012", "a detach between two blocks", in_model(detached=1)),
    Planted("PF022", "bf16 weights at a rate of 3e-6", changed(_in_bf16)),
    Planted("PF030", "positions that no optimizer holds", changed(_left_out)),
    Planted("PF032", "an optimizer of the model before a copy", changed(_old_model)),
    Planted("PF033", "one frozen matrix of one layer", changed(_freeze_one)),
    Planted("PF034", "decay of norms, biases and embeddings", changed(_decay_all)),
    Planted("PF035", "a clip threshold of 0.001", _set("clip_norm", lambda: 1e-3)),
    Planted("TT023", "a warm-up that never ends", with_schedule(lambda step: (step + 1) / 4000)),
    Planted("TT030", "a negative rate", with_schedule(lambda step: 1 - step / 300)),
    Planted("TT022", "a jump in the schedule", with_schedule(lambda step: _jumping(step))),
    Planted(
        "PF040",
        "a scheduler that forgets its step",
        changed(lambda s: s.update(scheduler=Forgetful(s["optimizer"]))),
    ),
    Planted("PF050", "a learning rate of 1e-9", changed(_slow)),
    Planted("PF051", "a loss that is a sum", _set("loss", lambda: _summed)),
    Planted("PF051", "micro-batches with unequal targets", changed(_ragged)),
    Planted("PF060", "labels that are not shifted", _set("loss", lambda: _unshifted)),
    Planted("PF060", "labels that are shifted twice", _set("loss", lambda: _shifted_twice)),
    Planted("PF061", "attention without a causal mask", in_model(is_causal=False)),
    Planted(
        "PF070",
        "a loader that repeats a batch",
        changed(lambda s: s.update(loader=[*text()[:5], *text()])),
    ),
    Planted("PF071", "workers that read the same rows", _workers),
    Planted("PF073", "a loader that shuffles alike", _set("loader", SameOrder)),
    Planted("PF074", "a loader that forgets its place", _set("loader", Restarting)),
)
"""The faults of one process; PF052 and PF072 need ranks (tests/checks/objects/test_ranks.py)."""


def _jumping(step: int) -> float:
    return min((step + 1) / 40, 1.0) * 0.99 ** max(step - 40, 0) if step < 200 else 0.8
