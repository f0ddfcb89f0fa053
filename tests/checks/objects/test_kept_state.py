"""A run whose state was restored ends like the run that never left, to the last bit."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from tests.kit.cases import one_of_each, some_of
from tests.kit.runs import (
    FEATURES,
    OPTIMIZERS,
    SCHEDULERS,
    Make,
    Run,
    TinyModel,
    batches,
    same_run,
    seed_all,
    tied_run,
)
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


def plain_run(make: Make = OPTIMIZERS["adamw"], **options: Any) -> Run:
    seed_all()
    model = TinyModel()
    options.setdefault("loader", batches(400))
    return Run(model=model, optimizers=[make(model.parameters())], **options)


def assert_exact(make_run: Callable[[], Run], until: int = 70, **back: Any) -> None:
    straight = make_run()
    straight.train(until)
    returned = make_run()
    returned.train(until, back=back.get("back", {60: 40}))
    same_run(straight, returned)


@pytest.mark.parametrize(
    ("name", "at", "to"),
    one_of_each(
        ((name, *back) for name, back in product(OPTIMIZERS, [(30, 20), (15, 0)])),
        lambda case: case[:2],
    ),
)
def test_every_optimizer_returns_exactly(name: str, at: int, to: int) -> None:
    assert_exact(lambda: plain_run(OPTIMIZERS[name]), until=35, back={at: to})


@pytest.mark.parametrize("name", some_of(SCHEDULERS, *list(SCHEDULERS)[::3]))
def test_every_scheduler_returns_exactly_and_twice_to_the_same_state(name: str) -> None:
    def make() -> Run:
        run = plain_run()
        run.schedulers = [SCHEDULERS[name](run.optimizers[0])]
        return run

    assert_exact(make, back={60: 40, 65: 40})


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_two_optimizers_return_exactly() -> None:
    def make() -> Run:
        run = plain_run()
        model = run.model
        assert isinstance(model, TinyModel)
        run.optimizers = [
            optim.Muon([model.inner.weight], lr=1e-3),
            optim.AdamW([p for p in model.parameters() if p is not model.inner.weight], lr=1e-2),
        ]
        return run

    assert_exact(make)


def test_tied_weights_and_a_bf16_model_return_exactly() -> None:
    assert_exact(tied_run)


def test_a_compiled_model_returns_exactly_without_compiling_again() -> None:
    def make() -> Run:
        run = plain_run()
        run.model.compile(backend="aot_eager")
        return run

    torch._dynamo.reset()
    # reset() keeps the counters, so what other tests compiled would count here.
    torch._dynamo.utils.counters.clear()
    assert_exact(make)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


class Noisy(Dataset[Any]):
    """A dataset that draws random numbers where it is read."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        inputs = torch.randn(FEATURES)
        return inputs, inputs.sum(dim=0, keepdim=True)


@pytest.mark.parametrize(("workers", "own_generator"), one_of_each(product([0, 2], [False, True])))
def test_every_loader_returns_exactly(workers: int, own_generator: bool) -> None:
    def make() -> Run:
        generator = torch.Generator().manual_seed(3) if own_generator else None
        loader = DataLoader(
            Noisy(),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            generator=generator,
            multiprocessing_context="fork" if workers else None,
        )
        return plain_run(loader=loader)

    assert_exact(make, until=35, back={30: 20})


def test_group_options_and_frozen_parameters_return() -> None:
    def make(disturb: bool) -> Run:
        run = plain_run()

        def after_step(step: int) -> None:
            if disturb and step == 55:
                run.optimizers[0].param_groups[0]["betas"] = (0.5, 0.5)
                run.optimizers[0].param_groups[0]["weight_decay"] = 3.0
                run.model.get_submodule("head").requires_grad_(False)
                extra = nn.Parameter(torch.ones(2))
                run.optimizers[0].add_param_group({"params": [extra]})
                run.after_step = lambda step: None

        run.after_step = after_step
        return run

    straight = make(disturb=False)
    straight.train(70)
    returned = make(disturb=True)
    returned.train(70, back={60: 40})
    same_run(straight, returned)
    assert all(p.requires_grad for p in returned.model.parameters())


def test_no_tensor_and_no_dict_is_replaced() -> None:
    run = plain_run()
    run.train(30)
    optimizer = run.optimizers[0]
    before = [id(t) for s in optimizer.state.values() for t in s.values()]
    before += [id(p) for p in run.model.parameters()] + [id(g) for g in optimizer.param_groups]
    before += [p.data_ptr() for p in run.model.parameters()]
    run.train(25, back={20: 10})
    after = [id(t) for s in optimizer.state.values() for t in s.values()]
    after += [id(p) for p in run.model.parameters()] + [id(g) for g in optimizer.param_groups]
    after += [p.data_ptr() for p in run.model.parameters()]
    assert before == after
