"""A run that recovers by itself measures a sample of each tensor, at every step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.recovering import drive, plain_run
from tests.kit.tiny import journal_of
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.core import signals
from trimtab.live.measure.gradients import GradientNorm
from trimtab.live.measure.param_chunks import RUN_ELEMENTS, SAMPLE_RUNS, sample_of
from trimtab.live.measure.telemetry import Telemetry, read_telemetry

SAMPLE = SAMPLE_RUNS * RUN_ELEMENTS
CPU = torch.device("cpu")


class Sizes(TorchDispatchMode):
    """Adds up the elements that operations produce; views are none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = func._schema.returns[0].alias_info is None if func._schema.returns else False
        if is_new and isinstance(result, torch.Tensor):
            self.elements += result.numel()
        return result


def trained(width: int) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(width, width), nn.Linear(width, width), nn.LayerNorm(width))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(width)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def signals_of(
    model: nn.Module, optimizer: optim.Optimizer, *, is_sampled: bool
) -> dict[str, float]:
    telemetry = _telemetry(model, optimizer, is_sampled=is_sampled)
    return read_telemetry(
        dict(zip(telemetry.slots, telemetry.measure().tolist(), strict=True)), world=1
    )


def _telemetry(model: nn.Module, optimizer: optim.Optimizer, *, is_sampled: bool) -> Telemetry:
    return Telemetry(model, [optimizer], GradientNorm(CPU), CPU, is_sampled=is_sampled)


def test_small_tensors_are_measured_as_a_whole() -> None:
    model, optimizer = trained(SAMPLE // 64)
    whole = signals_of(model, optimizer, is_sampled=False)
    assert signals_of(model, optimizer, is_sampled=True) == pytest.approx(whole, rel=1e-5)


def test_a_sample_stands_for_the_whole_tensor() -> None:
    model, optimizer = trained(512)
    whole = signals_of(model, optimizer, is_sampled=False)
    sampled = signals_of(model, optimizer, is_sampled=True)
    assert sampled[signals.PARAM_NORM] == pytest.approx(whole[signals.PARAM_NORM], rel=1e-5)
    for name in (signals.ADAM_V_NORM, signals.ADAM_M_NORM, signals.UPDATE_NORM):
        assert sampled[name] == pytest.approx(whole[name], rel=0.15), name
    assert sampled[signals.ADAM_M_NORM] != whole[signals.ADAM_M_NORM]


def test_what_happens_to_all_elements_shows_in_the_sample_to_the_same_extent() -> None:
    model, optimizer = trained(512)
    before = signals_of(model, optimizer, is_sampled=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
            optimizer.state[parameter]["exp_avg_sq"].mul_(0.25)
    after = signals_of(model, optimizer, is_sampled=True)
    assert after[signals.PARAM_NORM] / before[signals.PARAM_NORM] == pytest.approx(0.9, rel=1e-5)
    assert after[signals.ADAM_V_NORM] / before[signals.ADAM_V_NORM] == pytest.approx(0.25, rel=1e-5)


def test_one_weight_that_is_flipped_shows_wherever_it_is() -> None:
    model, optimizer = trained(512)
    before = signals_of(model, optimizer, is_sampled=True)[signals.PARAM_NORM]
    for place in (0, 12345, 512 * 512 - 1):
        with torch.no_grad():
            weight = next(model.parameters()).view(-1)
            was = float(weight[place])
            weight[place] = 1e6
            assert signals_of(model, optimizer, is_sampled=True)[signals.PARAM_NORM] > 100 * before
            weight[place] = was


def test_the_work_does_not_grow_with_the_tensors() -> None:
    counted = []
    for width in (1024, 2048):
        model, optimizer = trained(width)
        telemetry = _telemetry(model, optimizer, is_sampled=True)
        telemetry.measure()
        with Sizes() as sizes:
            telemetry.measure()
        counted.append(sizes.elements)
    # Four times the elements.
    assert counted[1] < 1.5 * counted[0]
    assert counted[1] < 64 * 2 * SAMPLE


@pytest.mark.parametrize("size", [1, SAMPLE, SAMPLE + 1, 3 * SAMPLE + 17, 10**6])
def test_a_sample_is_spread_over_the_tensor(size: int) -> None:
    found = sample_of(torch.arange(size)).flatten()
    assert len(found) == min(size, SAMPLE) == len(set(found.tolist()))
    assert found[0] == 0
    assert found[-1] >= size - 1 - SAMPLE_RUNS


def test_a_sample_of_a_transposed_tensor_is_of_its_own_elements() -> None:
    tensor = torch.arange(100.0 * 200).reshape(100, 200).t()
    assert torch.equal(sample_of(tensor), sample_of(tensor.contiguous()))
    view = torch.arange(10.0**5)[5000:]
    assert sample_of(view).flatten()[0] == 5000


@pytest.mark.parametrize(("ladder", "every"), [(True, 2), (False, 10)])
def test_a_run_that_decides_by_itself_measures_every_second_step(
    ladder: bool, every: int, tmp_path: Path
) -> None:
    drive(plain_run(), tmp_path, 31, settings={"ladder.enabled": ladder})
    block = journal_of(tmp_path)
    measured = block.step[block.column(signals.PARAM_NORM).present]
    assert measured.tolist() == list(range(0, 31, every))
    assert math.isfinite(block.column(signals.UPDATE_NORM).values[0])
