"""A bad step leaves every bit as it was, with every dense optimizer of torch and one of others."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.live.protect.made_up import FAULTS, Make, assert_same, fused, plain, train
from torch import optim

CASES: dict[str, tuple[Make, Make]] = {
    # What the user makes, and what the protected run must be equal to without its bad steps.
    "AdamW fused": (fused(optim.AdamW), fused(optim.AdamW)),
    "AdamW promoted": (plain(optim.AdamW), fused(optim.AdamW)),
    "AdamW for-loop promoted": (plain(optim.AdamW, foreach=False), fused(optim.AdamW)),
    "AdamW amsgrad": (plain(optim.AdamW, amsgrad=True), fused(optim.AdamW, amsgrad=True)),
    "Adam promoted": (plain(optim.Adam), fused(optim.Adam)),
    "SGD promoted": (plain(optim.SGD, lr=0.1), fused(optim.SGD, lr=0.1)),
    "SGD momentum promoted": (
        plain(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        fused(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "Adagrad promoted": (plain(optim.Adagrad), fused(optim.Adagrad)),
    "Adadelta": (plain(optim.Adadelta),) * 2,
    "Adafactor": (plain(optim.Adafactor),) * 2,
    "Adamax": (plain(optim.Adamax),) * 2,
    "ASGD": (plain(optim.ASGD),) * 2,
    **({"Muon": (plain(optim.Muon),) * 2} if hasattr(optim, "Muon") else {}),
    "NAdam": (plain(optim.NAdam),) * 2,
    "RAdam": (plain(optim.RAdam),) * 2,
    "RMSprop": (plain(optim.RMSprop, momentum=0.9),) * 2,
    "Rprop": (plain(optim.Rprop),) * 2,
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 40

# Muon in half precision and Adadelta say so themselves.
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:torch")


def faults_at(seed: int, count: int, steps: int) -> dict[int, str]:
    """The first step and so many others, each with a fault of its own."""
    dice = random.Random(seed)
    places = [0, *dice.sample(range(1, steps), count - 1)]
    return {place: dice.choice(FAULTS) for place in places}


def check(
    name: str,
    dtype: torch.dtype,
    faults: dict[int, str],
    steps: int,
    folder: Path,
    *,
    on_device: bool = False,
) -> None:
    make, reference = CASES[name]
    if not on_device or (name == "SGD momentum promoted" and dtype != torch.float32):
        reference = make  # it stays as it is: nothing has to be fused, or could be trusted then
    protected = train(make, steps, folder, faults=faults, dtype=dtype)
    assert_same(protected, train(reference, steps, faults=faults, dtype=dtype), (name, dtype))


@pytest.mark.parametrize("name", CASES)
def test_a_run_with_bad_steps_is_the_run_without_them(name: str, tmp_path: Path) -> None:
    check(name, torch.float32, faults_at(len(name), 6, 16), 16, tmp_path)


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("name", some_of(CASES, *list(CASES)[::3]))
def test_so_it_is_where_the_decision_stays_on_the_device(name: str, tmp_path: Path) -> None:
    check(name, torch.float32, faults_at(len(name), 6, 16), 16, tmp_path, on_device=True)


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["AdamW promoted", "SGD momentum promoted", "RMSprop"])
def test_in_half_precision_too(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check(name, dtype, faults_at(3, 6, 16), 16, tmp_path, on_device=True)


@pytest.mark.usefixtures("device_path")
def test_promotion_leaves_alone_what_scalers_and_trainers_go_by(tmp_path: Path) -> None:
    # With it Lightning refuses to clip, and Accelerate does not see that a step was skipped.
    def look(number: int, guard: Any, optimizer: Any) -> None:
        assert not hasattr(optimizer, "_step_supports_amp_scaling")
        assert number == 0 or optimizer.param_groups[0]["fused"]

    train(plain(optim.AdamW), 3, tmp_path, on_step=look)


@pytest.mark.parametrize("package", ["lion_pytorch:Lion", "adan_pytorch:Adan"])
def test_an_optimizer_of_others(package: str, tmp_path: Path) -> None:
    module, kind = package.split(":")
    make = plain(getattr(pytest.importorskip(module), kind), lr=1e-3)
    faults = faults_at(5, 6, 16)
    assert_same(train(make, 16, tmp_path, faults=faults), train(make, 16, faults=faults))
