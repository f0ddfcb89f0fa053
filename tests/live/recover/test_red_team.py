"""Ordinary loops in which recovery once did harm: everything but the weights goes on, undo or not.

Each loop runs twice, with a guard that does nothing and in `recover` with an undo in the middle.
What it returns must be the same: data, schedules, counters, generators, flags.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.observing import observe
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.undo import refusals, undos
from tests.kit.user_loop import take_step
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import trimtab
from trimtab.core.config import Config
from trimtab.core.events import UNDO_REFUSED

AT = 33
"""The step in which the undo is asked for."""
CONFIG = Config().override({"recover.snapshot_every": 5})


class Script:
    """A training script: model and optimizer, and whether a guard watches it."""

    def __init__(self, folder: Path, *, is_watched: bool, model: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        self.model = model or make_model()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)
        self.folder, self.is_watched = folder, is_watched
        self.num_steps = 0

    def watch(self, optimizers: Any = None, **options: Any) -> Any:
        options = {"mode": "recover", "config": CONFIG, **options}
        return trimtab.watch(
            self.model,
            optimizers or self.optimizer,
            run_dir=self.folder,
            enabled=self.is_watched,
            **options,
        )

    def step(self, guard: Any, loss: torch.Tensor, **recorded: Any) -> None:
        guard.record(loss=loss, **recorded)
        loss.backward()
        if self.num_steps == AT:
            guard.undo()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1


Loop = Callable[[Script], Any]


def epoch_schedulers(script: Script) -> Any:
    """A schedule per epoch, one by a plateau, and code between the epochs."""
    by_epoch = optim.lr_scheduler.StepLR(script.optimizer, 1, gamma=0.5)
    plateau = optim.lr_scheduler.ReduceLROnPlateau(script.optimizer, patience=0, factor=0.5)
    rates, seen = [], []
    with script.watch() as guard:
        for epoch in range(4):
            for step in guard.steps(batches(20, seed=epoch)):
                for batch in step:
                    seen.append(batch)
                    script.step(guard, loss_of(script.model, batch))
            by_epoch.step()
            plateau.step(1.0)
            rates.append(script.optimizer.param_groups[0]["lr"])
    return rates, by_epoch.last_epoch, plateau.num_bad_epochs, torch.stack(seen)


def two_loaders(script: Script) -> Any:
    """Labelled and unlabelled data at once, and a validation by `guard.steps` in between."""
    seen: list[tuple[int, ...]] = []
    with script.watch() as guard:
        one = guard.steps([*enumerate(batches(60))])
        other = guard.steps([*enumerate(batches(60, seed=2))])
        for first, second in zip(one, other, strict=True):
            ((a, batch),), ((b, more),) = list(first), list(second)
            seen.append((a, b, first.number, second.number))
            loss = loss_of(script.model, batch) + 0.1 * loss_of(script.model, more)
            script.step(guard, loss)
            if a % 20 == 10:
                for validation in guard.steps(batches(3, seed=9)):
                    for batch in validation:
                        with torch.no_grad():
                            guard.record(eval_loss=loss_of(script.model, batch))
        for step in guard.steps(batches(2)):
            seen.append((step.number,))
    return seen


class Pair(tuple[Any, ...]):
    """A tuple whose constructor takes its parts one by one."""

    def __new__(cls, inputs: Any, name: str) -> "Pair":
        return super().__new__(cls, (inputs, name))


class Named(dict[str, Any]):
    """A dict that needs an argument."""

    def __init__(self, name: str, **parts: Any) -> None:
        super().__init__(parts)
        self.name = name


def odd_batches(script: Script) -> Any:
    """Batches of classes that cannot be built from their parts; they arrive as they were given."""
    made: list[Any] = []
    for tokens in batches(60):
        packed = pack_sequence([tokens[0], tokens[1, :5]])
        grouped = defaultdict(list, {"tokens": [tokens]})
        choices = (packed, Pair(tokens, "x"), Named("n", tokens=tokens), grouped)
        made.append(choices[len(made) % 4])
    arrived = []
    with script.watch(batch_loss=lambda batch: loss_of(script.model, tokens_of(batch))) as guard:
        for step in guard.steps(made):
            for batch in step:
                arrived.append(batch is made[step.number])
                script.step(guard, loss_of(script.model, tokens_of(batch)), batch=batch)
    return arrived, [type(batch).__name__ for batch in made]


def tokens_of(batch: Any) -> torch.Tensor:
    if isinstance(batch, PackedSequence):
        return batch.data[None]
    found: Any = batch[0] if isinstance(batch, Pair) else batch["tokens"]
    tokens: torch.Tensor = found[0] if isinstance(found, list) else found
    return tokens


def numpy_in_place(script: Script) -> Any:
    """Batches are numpy arrays, and the loop changes them where they are."""
    made = [batch.numpy().astype(np.float32) for batch in batches(60)]
    script.model = nn.Linear(9, 1)
    script.optimizer = optim.AdamW(script.model.parameters())
    with script.watch(batch_loss=lambda b: script.model(torch.from_numpy(b)).mean()) as guard:
        for step in guard.steps(made):
            for batch in step:
                batch *= 0.5
                script.step(guard, script.model(torch.from_numpy(batch)).mean(), batch=batch)
    return np.stack(made)


def reused_buffer(script: Script) -> Any:
    """The loader fills the same memory again for each batch."""
    buffer = torch.empty_like(batches(1)[0])
    seen = []

    def loader() -> Iterator[torch.Tensor]:
        for batch in batches(60):
            yield buffer.copy_(batch)

    with script.watch(batch_loss=lambda batch: loss_of(script.model, batch)) as guard:
        for step in guard.steps(loader()):
            for batch in step:
                seen.append(batch.clone())
                script.step(guard, loss_of(script.model, batch), batch=batch)
    return torch.stack(seen)


def own_generators(script: Script) -> Any:
    """Random numbers from generators that only the script knows."""
    ours, numpy_ours = torch.Generator().manual_seed(3), np.random.default_rng(3)
    drawn = []
    with script.watch() as guard:
        for batch in batches(60):
            drawn.append((torch.rand((), generator=ours).item(), numpy_ours.random()))
            script.step(guard, loss_of(script.model, batch))
    return drawn, torch.rand(3)


def flag_and_counter(script: Script) -> Any:
    """A layer that a flag unfreezes once, and a learning rate computed from the script's count."""
    model: Any = script.model
    script.optimizer = optim.AdamW([*model.blocks.parameters()], lr=1e-2)
    is_frozen, rates = True, []
    with script.watch() as guard:
        for count, batch in enumerate(batches(60)):
            if is_frozen and count == AT - 10:
                is_frozen = False
                script.optimizer.add_param_group({"params": [*model.head.parameters()]})
            for group in script.optimizer.param_groups:
                group["lr"] = 1e-2 * (1 - count / 100)
            rates.append([group["lr"] for group in script.optimizer.param_groups])
            script.step(guard, loss_of(model, batch))
    return rates


@pytest.mark.parametrize("at", some_of([AT - 2, AT + 1, AT + 2, AT + 3], AT - 2, AT + 2))
def test_parameters_that_were_added_since_the_snapshot_end_no_run(at: int, tmp_path: Path) -> None:
    """Neither before the undo is decided, nor between its decision and the restore."""
    script = Script(tmp_path, is_watched=True)
    model: Any = script.model
    script.optimizer = optim.AdamW([*model.blocks.parameters()], lr=1e-2)
    other = optim.AdamW(model.embed.parameters(), lr=1e-2)
    with script.watch([script.optimizer, other]) as guard:
        for count, batch in enumerate(batches(60)):
            script.step(guard, loss_of(model, batch))
            if count == at:
                script.optimizer.add_param_group({"params": [*model.head.parameters()]})
            other.step()
            other.zero_grad()
    refused = [event for event in journal_of(tmp_path).events if event.kind == UNDO_REFUSED]
    assert len(refused) + len(undos(tmp_path)) == 1
    assert refusals(tmp_path) == []  # nothing was harmed
    if at == AT - 2:
        assert "no snapshot of these parameters" in str(refused[0].facts["because"])


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        epoch_schedulers,
        two_loaders,
        odd_batches,
        numpy_in_place,
        reused_buffer,
        own_generators,
        flag_and_counter,
    )
}


@pytest.mark.parametrize(
    "name", some_of(LOOPS, "epoch_schedulers", "odd_batches", "own_generators", "flag_and_counter")
)
def test_an_undo_touches_nothing_but_the_trained_state(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = LOOPS[name](Script(tmp_path / "bare", is_watched=False))
    watched = LOOPS[name](Script(tmp_path / "watched", is_watched=True))
    assert_equal(bare, watched)
    assert len(undos(tmp_path / "watched")) == 1
    assert "failed in" not in caplog.text


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, tuple | list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other)
    else:
        assert one == other


class Counts(nn.Module):
    """Has extra state, as Transformer Engine's modules do, and an attribute that it carries."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.count = 0
        self.carried = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += self.training
        self.carried = self.inner(x).mean().detach()
        result: torch.Tensor = self.inner(x) + 0.0 * self.carried
        return result

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_extra_state_follows_the_weights(tmp_path: Path) -> None:
    model = Counts()
    script = Script(tmp_path, is_watched=True, model=model)
    counts = []
    with script.watch() as guard:
        for _ in range(60):
            script.step(guard, model(torch.randn(4, 4)).square().mean())
            counts.append(model.count)
    (undo,) = undos(tmp_path)
    lost = int(undo.facts["updates_lost"])
    assert counts[-1] == 60 - lost - 1  # one update more was not made, its forward pass was
    assert any(b <= a for a, b in pairwise(counts))


def gan_steps(folder: Path, *, is_watched: bool) -> tuple[list[int], int]:
    torch.manual_seed(0)
    parts = nn.ModuleDict({"G": nn.Linear(4, 2), "D": nn.Linear(2, 1)})
    maker, judge = parts["G"], parts["D"]
    optimizers = [optim.Adam(maker.parameters()), optim.Adam(judge.parameters())]
    numbers: list[int] = []
    with trimtab.watch(parts, optimizers, run_dir=folder, enabled=is_watched) as guard:
        for epoch in range(2):
            for step in guard.steps(torch.randn(30, 4, 2).unbind()):
                if step.number >= 50:
                    break
                numbers.append(step.number)
                for real in step:
                    noise = torch.randn(4, 4)
                    for at, loss_now in enumerate(("judge", "maker")):
                        fake = judge(maker(noise))
                        loss = F.softplus(-fake).mean()
                        if loss_now == "judge":
                            loss = F.softplus(fake).mean() + F.softplus(-judge(real)).mean()
                        take_step(guard, optimizers[1 - at], loss)
            assert epoch < 2
    return numbers, len(observe(folder)) if is_watched else 0


def test_step_number_counts_the_steps_of_the_loop(tmp_path: Path) -> None:
    """Also where each has two updates, and the batch of both is no repeated batch."""
    numbers, num_incidents = gan_steps(tmp_path / "run", is_watched=True)
    assert numbers == gan_steps(tmp_path / "bare", is_watched=False)[0] == list(range(50))
    assert num_incidents == 0
    block = journal_of(tmp_path / "run")
    assert block.step.tolist() == list(range(100))
    assert int(block.column("fingerprint").present.sum()) == 50


def test_step_number_counts_where_the_user_accumulates(tmp_path: Path) -> None:
    script = Script(tmp_path, is_watched=True)
    numbers = []
    with script.watch(mode="observe") as guard:
        for step in guard.steps(batches(40)):
            numbers.append(step.number)
            for batch in step:
                loss = loss_of(script.model, batch) / 4
                guard.record(loss=loss)
                loss.backward()
            if step.number % 4 == 3:
                script.optimizer.step()
                script.optimizer.zero_grad()
        saved = guard.state_dict()
    assert numbers == list(range(40))
    with script.watch(mode="observe", facts={"step": 10}) as guard:
        guard.load_state_dict(saved)
        assert [step.number for step in guard.steps(batches(2))] == [40, 41]
