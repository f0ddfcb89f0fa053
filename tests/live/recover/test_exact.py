"""Through the real guard: to 60, back to 40, on to 70 is the run that never left, bit by bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.recovering import assert_exact, drive, plain_run, train_step
from tests.kit.runs import Run, TinyModel, batches, same_run, tied_run
from tests.state.test_exact import OPTIMIZERS, SCHEDULERS, Noisy
from torch import optim
from torch.utils.data import DataLoader

import trimtab

FAST = ("adamw", "adamw-tensor-lr", "sgd-momentum", "adafactor")


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS],
)
@pytest.mark.parametrize("back", [{60: 40}, {25: 0}], ids=["to-40", "to-0"])
def test_optimizers_promoted_or_not(name: str, back: dict[int, int], tmp_path: Path) -> None:
    assert_exact(
        lambda: plain_run(lambda model: OPTIMIZERS[name](model.parameters())), tmp_path, back=back
    )


@pytest.mark.parametrize("name", ["one-cycle", "sequential", "plateau"])
def test_schedulers_and_three_rollbacks(name: str, tmp_path: Path) -> None:
    def make() -> Run:
        run = plain_run()
        run.schedulers = [SCHEDULERS[name](run.optimizers[0])]
        return run

    assert_exact(make, tmp_path, back={60: 40, 65: 40, 66: 10})


@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.slow), 5])
def test_lags_with_clipping(lag: int, tmp_path: Path) -> None:
    assert_exact(
        plain_run, tmp_path, clip=0.01, settings={"lag_steps": lag}, back={30: 10, 31: 0, 50: 45}
    )


@pytest.mark.parametrize("back", [{60: 40}, {25: 0}], ids=["to-40", "to-0"])
def test_gradient_scaler_and_accumulation(back: dict[int, int], tmp_path: Path) -> None:
    def make() -> Run:
        run = plain_run(lambda model: optim.SGD(model.parameters(), lr=1e-2), accumulate=2)
        run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)
        return run

    assert_exact(make, tmp_path, back=back)


def test_an_average_of_the_weights(tmp_path: Path) -> None:
    def make() -> Run:
        run = plain_run()
        average = optim.swa_utils.AveragedModel(
            run.model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        run.state = {"ema": average}
        run.after_step = lambda step: average.update_parameters(run.model)
        return run

    assert_exact(make, tmp_path)


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_two_optimizers(tmp_path: Path) -> None:
    def make() -> Run:
        run = plain_run()
        model = run.model
        assert isinstance(model, TinyModel)
        run.optimizers = [
            optim.Muon([model.inner.weight], lr=1e-3),
            optim.AdamW([p for p in model.parameters() if p is not model.inner.weight], lr=1e-2),
        ]
        return run

    assert_exact(make, tmp_path)


def test_tied_weights_in_bf16(tmp_path: Path) -> None:
    assert_exact(tied_run, tmp_path, back={60: 40, 65: 0}, clip=0.01)


def test_a_compiled_model(tmp_path: Path) -> None:
    def make() -> Run:
        run = plain_run()
        run.model.compile(backend="aot_eager")
        return run

    torch._dynamo.reset()
    assert_exact(make, tmp_path, settings={"live.activations": False})


@pytest.mark.parametrize("workers", [0, 2])
def test_new_epochs_of_a_loader_that_draws_random_numbers(workers: int, tmp_path: Path) -> None:
    """The rollback from step 60 goes back over the border of two epochs."""

    def make() -> Run:
        data = torch.utils.data.Subset(Noisy(), range(100))
        loader = DataLoader(
            data,
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        return plain_run(loader=loader)

    # An epoch has 25 steps: back within one, over a border, and right at one.
    assert_exact(make, tmp_path, back={60: 30, 50: 49, 55: 20})


@pytest.mark.parametrize("accumulate", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_epochs_that_end_with_a_short_step(accumulate: int, tmp_path: Path) -> None:
    def make() -> Run:
        data = torch.utils.data.Subset(Noisy(), range(52))  # 13 batches
        return plain_run(loader=DataLoader(data, batch_size=4, shuffle=True), accumulate=accumulate)

    assert_exact(make, tmp_path, back={60: 30, 66: 64, 21: 20})


def test_a_rollback_asked_for_between_two_epochs(tmp_path: Path) -> None:
    """The iterator of the next epoch is made, and draws, before the run goes back."""

    def loop(folder: Path, back: bool) -> Run:
        run = plain_run(loader=DataLoader(Noisy(), batch_size=6, shuffle=True), accumulate=3)
        with trimtab.watch(run.model, run.optimizers, run_dir=folder, mode="recover") as guard:
            for _ in range(3):  # epochs of 23 steps, the last of them short
                for step in guard.steps(run.loader, accumulate=3):
                    train_step(run, guard, step.number, step)
                if back and step.number == 22:
                    guard.rollback(to=10)
            assert guard.recovery is not None
            assert guard.recovery.attempt == int(back)
        return run

    same_run(loop(tmp_path / "straight", False), loop(tmp_path / "returned", True))


def test_a_skip_is_the_run_over_data_without_those_batches(tmp_path: Path) -> None:
    skipped = {44, 45, 48, 70}
    without = [pair for position, pair in enumerate(batches(400)) if position not in skipped]
    expected = plain_run(loader=without)
    drive(expected, tmp_path / "without", 80)
    returned = plain_run()
    assert drive(returned, tmp_path / "skip", 80, back={60: 40}, skip=skipped) == 1
    same_run(expected, returned)


def test_a_run_that_never_goes_back_has_the_bits_of_protect(tmp_path: Path) -> None:
    runs: list[Any] = []
    for mode in ("protect", "recover"):
        run = plain_run()
        drive(run, tmp_path / mode, 40, mode=mode, clip=0.5)
        runs.append(run)
    same_run(*runs)
