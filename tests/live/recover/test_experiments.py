"""Experiments on remembered batches: what they answer, and that they leave no trace."""

import random
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import events_of, take_step, watching
from torch import nn, optim

import trimtab
from trimtab.core.config import Config
from trimtab.core.events import EXPERIMENT
from trimtab.live.recover.experiments import Answer, Laboratory
from trimtab.live.recover.traces import Trace, without_trace
from trimtab.state.batches import RememberedBatches

adamw = partial(optim.AdamW, fused=True)
QUICK = Config().override({"recover.snapshot_every": 5})


def made(model: nn.Module, loss: Callable[[Any], torch.Tensor], *given: Any) -> dict[str, Answer]:
    return {answer.name: answer for answer in Laboratory(model, loss).answers(given)}


class Parts(nn.Module):
    """A middle module that can overflow in half precision, and one that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.middle = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(self.norm(self.middle(self.first(x))))
        return result


def squares(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    return lambda batch: model(batch).square().mean()


def test_a_sound_model_gives_the_same_bits_and_all_rows_are_alike() -> None:
    torch.manual_seed(0)
    model = make_model()
    answers = made(model, lambda batch: loss_of(model, batch), *batches(4, size=16))
    assert {name: answer.answer for name, answer in answers.items()} == {"again": "same"}


def test_that_no_row_stands_out_is_said_of_a_batch_that_does() -> None:
    model = nn.Linear(4, 4)
    high, usual, broken = torch.full((8, 4), 9.0), torch.ones(8, 4), torch.full((8, 4), torch.nan)
    assert made(model, squares(model), usual, usual, high)["half"].answer == "all"
    assert "half" not in made(model, squares(model), high, high, high)
    assert "half" not in made(model, squares(model), usual, usual, broken)


def test_a_model_that_does_not_repeat_itself_is_found() -> None:
    counts = iter(range(100))
    answers = made(nn.Linear(1, 1), lambda batch: batch.mean() + next(counts), torch.ones(1))
    assert answers["again"].answer == "differs"


def test_the_first_module_that_is_not_finite_is_named() -> None:
    model = Parts()
    with torch.no_grad():
        model.middle.bias.fill_(3e38)
        model.middle.weight.mul_(1e38)
        model.first.bias.fill_(9.0)
    answers = made(model, squares(model), torch.ones(8, 4))
    assert answers["first_nonfinite"].answer == "module"
    said = answers["first_nonfinite"].sentence
    assert "middle (Linear) is the first module with a non-finite output" in said
    assert re.search(r"largest outputs before it: [89]\.\d+ in first$", said)
    with torch.no_grad():
        model.first.weight[0, 0] = torch.nan
    answers = made(model, squares(model), torch.ones(8, 4))
    assert answers["first_nonfinite"].sentence == "first.weight is not finite itself"


def test_low_precision_is_told_from_the_model() -> None:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.fill_(3e4)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            result: torch.Tensor = model(batch).float().mean()
        return result

    answers = made(model, loss, torch.ones(2, 4))
    assert answers["fp32"].answer == "precision"
    assert made(model, loss, torch.zeros(2, 4))["fp32"].answer == "finite"


@pytest.mark.parametrize("value", [float("nan"), 1000.0])
def test_the_rows_that_make_the_loss_are_found(value: float) -> None:
    model, batch = Parts().eval(), torch.randn(16, 4)
    batch[11] = value
    answers = made(model, squares(model), torch.randn(16, 4), batch)
    assert answers["half"].answer == "rows"
    assert "row 11 of the 16 rows" in answers["half"].sentence


class Carries(Parts):
    """Changes an attribute in each forward pass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.count = 0
        self.state = torch.zeros(1)
        self.dice = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "count":
                self.count += 1
            case "state":
                self.state = x.mean().detach()
            case "dice":
                torch.rand(1, generator=self.dice)
            case "fresh":
                self.fresh = x
            case "first.weight":
                self.first.weight.data = self.first.weight.data.clone()
        return super().forward(x)


@pytest.mark.parametrize("kind", ["", "count", "state", "dice", "fresh", "first.weight"])
def test_what_moves_is_named_and_restored(kind: str) -> None:
    torch.manual_seed(0)
    model = Carries(kind)
    before = torch.get_rng_state(), model.dice.get_state(), *map(torch.clone, model.buffers())
    trace = Trace(model)
    made(model, squares(model), torch.randn(8, 4))
    model.eval()
    assert trace.restore() == (kind or None)
    after = torch.get_rng_state(), model.dice.get_state(), *model.buffers()
    assert all(map(torch.equal, before, after))
    assert model.training
    assert model.count == 0
    assert torch.equal(model.state, torch.zeros(1))
    assert not hasattr(model, "fresh")


def train(folder: Path, *, mode: str = "recover", model: nn.Module | None = None) -> nn.Module:
    """Train with one batch that has a NaN in its third row."""
    torch.manual_seed(0)
    model = model or Parts()
    options: dict[str, Any] = {"batch_loss": squares(model)} if mode == "recover" else {}
    data = torch.randn(40, 8, 4, generator=torch.Generator().manual_seed(3))
    data[30, 2, 1] = torch.nan
    with watching(folder, mode, model=model, make=adamw, config=QUICK, **options) as run:
        for batch in data:
            take_step(run.guard, run.optimizer, model(batch).square().mean(), batch=batch)
    return model


def test_a_run_with_a_bad_batch_is_explained_and_has_the_bits_of_protect(tmp_path: Path) -> None:
    model = train(tmp_path / "recover")
    plain = train(tmp_path / "protect", mode="protect")
    for one, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    found = [e.facts for e in events_of(tmp_path / "recover", EXPERIMENT)]
    answers = {facts["name"]: facts["answer"] for facts in found}
    assert answers["again"] == "same"
    assert answers["first_nonfinite"] == "batch"
    assert "rows 2 to 3 of the 8 rows" in next(f["sentence"] for f in found if f["name"] == "half")


def test_a_model_that_carries_a_state_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, model=Carries("count"))
    assert caplog.text.count("batch_loss changes count, so no experiments") == 1
    assert events_of(tmp_path, EXPERIMENT) == []


class Naughty:
    """A `batch_loss` that leaves something behind, in one of many ways."""

    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, what: str) -> None:
        self.model: Any = model
        self.optimizer = optimizer
        self.what = what
        self.num_calls = 0

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
        loss: torch.Tensor = self.model(batch).square().mean()
        getattr(self, self.what)(batch)
        return loss

    def raises(self, batch: torch.Tensor) -> None:
        if self.num_calls > 2:
            raise ValueError("in the middle")

    def makes_a_module(self, batch: torch.Tensor) -> None:
        if not hasattr(self.model, "probe"):
            self.model.probe = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def makes_a_parameter(self, batch: torch.Tensor) -> None:
        self.model.gain = nn.Parameter(torch.ones(1))

    def makes_a_buffer(self, batch: torch.Tensor) -> None:
        self.model.norm.register_buffer("count", torch.ones(1))

    def deletes(self, batch: torch.Tensor) -> None:
        self.model.eval()
        del self.model.norm
        self.model.norm = nn.Identity()

    def replaces_a_buffer(self, batch: torch.Tensor) -> None:
        self.model.norm.running_mean = torch.full((4,), 7.0)

    def goes_backward(self, batch: torch.Tensor) -> None:
        with torch.enable_grad():
            self.model(batch.nan_to_num()).square().mean().backward()

    def sets_gradients(self, batch: torch.Tensor) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)

    def freezes(self, batch: torch.Tensor) -> None:
        self.model.requires_grad_(False)

    def registers_hooks(self, batch: torch.Tensor) -> None:
        self.model.first.weight.register_hook(lambda gradient: gradient * 0)
        self.model.first.register_forward_hook(lambda *_: None)
        self.model.middle.weight.register_post_accumulate_grad_hook(lambda p: None)

    def changes_settings(self, batch: torch.Tensor) -> None:
        torch.set_default_dtype(torch.bfloat16)
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", True)

    def takes_a_step(self, batch: torch.Tensor) -> None:
        self.goes_backward(batch)
        self.optimizer.step()

    def takes_a_step_of_another(self, batch: torch.Tensor) -> None:
        self.goes_backward(batch)
        optim.SGD(self.model.parameters(), lr=1.0).step()

    def replaces_weights(self, batch: torch.Tensor) -> None:
        self.model.first.weight.data = torch.zeros(4, 4)

    def writes_a_list(self, batch: torch.Tensor) -> None:
        self.model.seen.append(batch)


NAUGHTY = [name for name in vars(Naughty) if not name.startswith("_")]


def train_naughty(folder: Path, what: str | None) -> list[Any]:
    """Train with gradients that add up; return all that may have a trace."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    model: Any = Parts()
    model.seen = []
    optimizer = optim.AdamW(model.parameters(), fused=True)
    batch_loss = None if what is None else Naughty(model, optimizer, what)
    data = torch.randn(16, 8, 4, generator=torch.Generator().manual_seed(3))
    data[8, 2, 1] = torch.nan
    with trimtab.watch(
        model, optimizer, run_dir=folder, mode="recover", config=QUICK, batch_loss=batch_loss
    ) as guard:
        for number, batch in enumerate(data):
            loss = model(batch).square().mean()
            guard.record(loss=loss, batch=batch)
            loss.backward()
            optimizer.step()
            if number % 3 == 2 or number == 8:
                optimizer.zero_grad()
    assert batch_loss is None or batch_loss.num_calls
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    return [
        [None if tensor is None else tensor.tolist() for tensor in tensors],
        [name for name, _ in model.named_modules()],
        [module.training for module in model.modules()],
        [len(module._forward_hooks) for module in model.modules()],
        [(p.requires_grad, p._backward_hooks) for p in model.parameters()],
        (model.seen, torch.get_default_dtype(), torch.is_autocast_enabled("cpu")),
        torch.get_rng_state().tolist(),
        str(np.random.get_state()),  # noqa: NPY002
        random.getstate(),
    ]


@pytest.fixture(scope="module")
def without_batch_loss(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return train_naughty(tmp_path_factory.mktemp("bare"), None)


@pytest.mark.parametrize("what", NAUGHTY)
def test_experiments_that_go_wrong_leave_no_trace(
    what: str, without_batch_loss: list[Any], tmp_path: Path
) -> None:
    found = train_naughty(tmp_path, what)
    for one, other in zip(found, without_batch_loss, strict=True):
        assert repr(one) == repr(other)  # NaN is equal to itself in there


def test_an_optimizer_in_another_thread_is_stepped_meanwhile() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones(1)
    with without_trace(nn.Linear(1, 1)):
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="must not call optimizer"):
            optimizer.step()
    assert weight.item() == 0.0


def test_autocast_in_another_thread_is_left_alone() -> None:
    laboratory = Laboratory(nn.Linear(1, 1), lambda batch: batch)
    seen: list[bool] = []

    def elsewhere() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(torch.is_autocast_enabled("cpu"))

    with laboratory._noting_autocast(is_disabled=True):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(torch.is_autocast_enabled("cpu"))
    assert seen == [True, False]


class Odd:
    """A batch of a class of its own."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


class Locked:
    """A batch that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


def test_batches_of_any_class_are_copied(caplog: pytest.LogCaptureFixture) -> None:
    kept = RememberedBatches()
    mine = Odd(np.zeros(3))
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    for batch in (mine, packed, {"x": [torch.zeros(2)]}):
        kept.add(batch)
    mine.values += 1  # a loop that writes to its batch
    assert next(iter(kept)).values.tolist() == [0, 0, 0]
    assert len(kept) == 3
    kept.add(Locked())
    kept.add(Locked())
    assert len(kept) == 3
    assert caplog.text.count("are not remembered") == 1
