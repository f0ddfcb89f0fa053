"""Default dtypes and devices, complex and sparse parameters, parameters on two devices."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.launch import in_child
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import (
    are_equal,
    column,
    discarded_steps,
    events_of,
    is_finite,
    losses,
    poison,
    warnings_of,
    watching,
    weights,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

import trimtab
from trimtab.core.config import Config
from trimtab.journal import RunDirectory
from trimtab.live.protect.discard import divide_gradients


def train_with_default_dtype(folder: Path, building: str, training: str, mode: str) -> bool:
    """One default dtype while the model is built and watched, maybe another one afterwards."""
    torch.set_default_dtype(getattr(torch, building))
    model = make_model().to(getattr(torch, training))
    nan_at = {8} if mode == "protect" else set()
    with watching(folder, mode, model=model) as run:
        torch.set_default_dtype(getattr(torch, training))
        run.train(14, nan_at=nan_at, record=lambda step, loss: {"tokens": 1001})
    return is_finite(model)


@pytest.mark.parametrize(
    ("building", "training", "mode"),
    [
        ("bfloat16", "float32", "protect"),
        ("float64", "float32", "protect"),
        ("bfloat16", "bfloat16", "observe"),
    ],
)
def test_the_default_dtype_does_not_matter(
    building: str, training: str, mode: str, tmp_path: Path
) -> None:
    assert in_child(train_with_default_dtype, tmp_path, building, training, mode)
    assert column(tmp_path, "tokens") == [1001.0] * 14
    assert mode == "observe" or discarded_steps(tmp_path) == [8]


def of_checkpoint(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """A loss whose graph is inside a function of Python."""
    logits: torch.Tensor = checkpoint(model.head, model.embed(batch), use_reentrant=True)
    return logits.square().mean()


@pytest.mark.parametrize(
    ("dtype", "make", "facts", "state", "known"),
    [
        (None, loss_of, {}, {}, "fp32"),
        (torch.bfloat16, loss_of, {}, {}, "bf16"),
        (torch.float16, loss_of, {}, {}, "fp16"),
        (torch.bfloat16, loss_of, {"dtype": "fp8"}, {}, "fp8"),
        (None, loss_of, {}, {"scaler": torch.amp.GradScaler("cpu")}, "fp16"),
        (None, loss_of, {}, {"scaler": torch.amp.GradScaler("cpu", enabled=False)}, "fp32"),
        (None, of_checkpoint, {}, {}, None),
        (None, lambda *args: loss_of(*args).item(), {}, {}, None),
    ],
)
def test_the_manifest_has_the_format_of_the_computation_where_it_is_known(
    dtype: Any, make: Any, facts: Any, state: Any, known: Any, tmp_path: Path
) -> None:
    with watching(tmp_path, facts=facts, state=state) as run:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = make(run.model, batches(1)[0])
        run.guard.record(loss=loss)  # outside of autocast, as usual
        run.optimizer.step()
    manifest = RunDirectory(tmp_path).read_manifest()
    assert (manifest["dtype"], manifest["parameter_dtype"]) == (known, "fp32")


def test_the_default_device_does_not_matter(tmp_path: Path) -> None:
    model, data = make_model(), batches(12)
    torch.set_default_device("meta")
    try:
        with watching(tmp_path, "protect", model=model) as run:
            for step, batch in enumerate(data):
                run.step(batch, tokens=36, spoils=step == 8)
    finally:
        torch.set_default_device(None)
    assert is_finite(model)
    assert column(tmp_path, "tokens") == [36.0] * 12


@pytest.mark.parametrize("clips", [False, True])
def test_complex_parameters_are_watched_and_protected(clips: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(4, dtype=torch.cfloat))])
    with watching(tmp_path, "protect", model=model, make=torch.optim.Adam) as run:
        for step in range(12):
            loss = model[0].abs().square().sum()
            run.guard.record(loss=loss)
            run.optimizer.zero_grad()
            loss.backward()
            if step == 8:
                poison(run.optimizer)
            norm = torch.view_as_real(model[0].grad).norm()
            if clips:
                torch.testing.assert_close(run.guard.clip_grad_norm_(1.0), norm, equal_nan=True)
            run.optimizer.step()
    assert torch.isfinite(torch.view_as_real(model[0])).all()
    assert len(losses(tmp_path)) == 12
    assert discarded_steps(tmp_path) == [8]
    assert events_of(tmp_path, "trimtab failed") == []


def test_parameters_on_two_devices_are_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # No second device here: fake tensors know their device and compute nothing. They cannot be
    # read, so nothing is delivered before the run ends.
    config = Config.from_dict({"live": {"lag_steps": 100}})
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.ParameterList(
            nn.Parameter(torch.empty(4, 4, device=device)) for device in ("cpu", "cuda:0")
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = trimtab.watch(model, optimizer, run_dir=tmp_path, config=config)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            guard.record(loss=1.0)
            optimizer.step()
        failures = warnings_of(caplog)
        caplog.set_level(logging.CRITICAL)
        guard.close()
    assert failures == []


def test_per_sample_gradients_leave_the_guard_working(tmp_path: Path) -> None:
    model = make_model().eval()

    def sample_loss(parameters: Any, row: torch.Tensor) -> torch.Tensor:
        return loss_of(lambda tokens: functional_call(model, parameters, (tokens,)), row[None])

    with watching(tmp_path, "protect", model=model) as run:
        run.train(4)
        named = {name: value.detach() for name, value in model.named_parameters()}
        vmap(grad(sample_loss), in_dims=(None, 0))(named, batches(1)[0])
        run.train(12, skip=range(4), nan_at={8})
    assert is_finite(model)
    assert len(losses(tmp_path)) == 12


@pytest.mark.parametrize("mode", ["observe", "protect", "recover"])
def test_gradients_from_inference_mode_are_trained_on(mode: str, tmp_path: Path) -> None:
    """Zeroth-order methods and gradients from elsewhere: torch counts no versions of those."""
    ends = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        model.register_buffer("mask", torch.ones(4))
        with torch.inference_mode():
            model.mask = torch.ones(4)
        with watching(tmp_path, mode, model=model, enabled=enabled) as run:
            for number in range(25):
                run.guard.record(loss=torch.ones((), requires_grad=True))
                for parameter in model.parameters():
                    with torch.inference_mode():
                        parameter.grad = torch.full(parameter.shape, 0.1 * number)
                run.optimizer.step()
            assert not enabled or not run.guard._monitor.shields.failed
        ends.append(weights(model))
    assert are_equal(*ends)


def test_gradients_from_inference_mode_can_be_scaled_down() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    with torch.inference_mode():
        weight.grad = torch.full((2,), 6.0)
    divide_gradients([weight], torch.tensor(3.0))
    assert weight.grad.tolist() == [2.0, 2.0]
