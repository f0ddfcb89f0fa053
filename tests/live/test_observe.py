"""Observing changes nothing, and sees the true numbers."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.kit.cases import RUNS_ALL, some_of
from tests.kit.tiny import (
    Setup,
    adamw,
    assert_same_bits,
    journal_of,
    make_model,
    muon_and_adamw,
    sgd,
    train,
)
from torch import nn

from trimtab.core.signals import Quality


def whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager", fullgraph=True)  # type: ignore[return-value]


def per_block(model: nn.Module) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend="aot_eager")
    return model


def whole_inductor(model: nn.Module) -> nn.Module:
    return torch.compile(model, fullgraph=True)  # type: ignore[return-value]


def per_block_inductor(model: nn.Module) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile()
    return model


SETUPS = {
    "AdamW fused": Setup(adamw(fused=True)),
    "AdamW foreach": Setup(adamw(foreach=True)),
    "AdamW for-loop": Setup(adamw(foreach=False)),
    "SGD": Setup(sgd),
    "Muon and AdamW": Setup(muon_and_adamw),
    "accumulation": Setup(adamw(fused=True), accumulate=4),
    "bf16 autocast": Setup(adamw(fused=True), autocast=torch.bfloat16),
    "fp16, GradScaler": Setup(adamw(), autocast=torch.float16, initial_scale=1024.0),
    "fp16, GradScaler, fused": Setup(
        adamw(fused=True), autocast=torch.float16, initial_scale=1024.0
    ),
    "compiled whole": Setup(adamw(fused=True), compile=whole),
    "compiled per block": Setup(adamw(fused=True), compile=per_block),
}
SLOW_SETUPS = {
    "inductor whole": Setup(adamw(fused=True), compile=whole_inductor),
    "inductor per block": Setup(adamw(fused=True), compile=per_block_inductor),
}


# Said by torch's own compiler: about a tensor between two compiled blocks, and about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def check(setup: Setup, tmp_path: Path) -> None:
    setup = dataclasses.replace(setup, steps=200 if RUNS_ALL else 22)  # telemetry at each tenth
    bare = train(setup, None)
    torch._dynamo.reset()
    if setup.compile is None:  # compiling takes longer than the steps
        assert_same_bits(bare, train(setup, tmp_path / "user clips"))
    clipped = train(dataclasses.replace(setup, guard_clips=True), tmp_path / "guard clips")
    assert_same_bits(bare, clipped)

    block = journal_of(tmp_path / "guard clips")
    assert len(block) == setup.steps
    norm = block.column("grad_norm")
    assert norm.present.all()
    reference = np.array(bare.norms)
    finite = np.isfinite(reference)
    np.testing.assert_allclose(norm.values[finite], reference[finite], rtol=1e-5)
    losses = np.array(bare.losses).reshape(-1, setup.accumulate).mean(axis=1)
    np.testing.assert_allclose(block.column("loss").values, losses, rtol=1e-5)


@pytest.mark.parametrize(
    "name", some_of(SETUPS, *SETUPS.keys() - {"AdamW for-loop", "compiled per block"})
)
def test_the_trained_bits_are_identical_and_the_norm_is_from_before_clipping(
    name: str, tmp_path: Path
) -> None:
    check(SETUPS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_SETUPS)
def test_with_inductor_too(name: str, tmp_path: Path) -> None:
    check(SLOW_SETUPS[name], tmp_path)


def test_who_clips_by_himself_gets_post_clip_quality_and_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = train(Setup(adamw(fused=True), steps=60, clip=0.5), tmp_path)
    block = journal_of(tmp_path)
    true_norms = np.array(outcome.norms)
    clipped = block.column("clipped_grad_norm")
    assert block.quality("clipped_grad_norm") is Quality.POST_CLIP
    assert (clipped.present == (true_norms > 0.5 * (1 + 1e-4))).all()
    np.testing.assert_allclose(clipped.values[clipped.present], 0.5, rtol=1e-4)
    # What was not clipped is true and stands under its own name.
    norm = block.column("grad_norm")
    np.testing.assert_allclose(norm.values[norm.present], true_norms[norm.present], rtol=1e-5)
    advice = [r.message for r in caplog.records if "after clipping only" in r.getMessage()]
    assert len(advice) == 1


def test_a_norm_that_is_given_is_taken(tmp_path: Path) -> None:
    from tests.kit.tiny import batches, loss_of

    import trimtab

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    norms = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for batch in batches(20):
            loss = loss_of(model, batch)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            guard.record(loss=loss, grad_norm=norm)
            norms.append(float(norm))
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(journal_of(tmp_path).column("grad_norm").values, norms, rtol=1e-6)


def test_without_clipping_the_norm_is_ours(tmp_path: Path) -> None:
    from tests.kit.tiny import batches, loss_of

    import trimtab

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    norms = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for batch in batches(20):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            loss.backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(journal_of(tmp_path).column("grad_norm").values, norms, rtol=1e-5)


def test_an_fp16_overflow_that_the_scaler_skipped_is_a_step_of_its_own(tmp_path: Path) -> None:
    # A scale this large overflows in the first steps: the optimizer is not called there.
    setup = Setup(adamw(), autocast=torch.float16, initial_scale=2.0**40, steps=60)
    train(setup, tmp_path)
    block = journal_of(tmp_path)
    skipped = [event for event in block.events if event.kind == "step not applied"]
    assert len(skipped) >= 3
    assert len(block) == 60
    scale = block.column("loss_scale")
    # The scaler makes its scale at first use, too late for a first step that it then skips.
    assert not scale.present[0]
    assert scale.values[1] == 2.0**39
    assert scale.values[-1] < 2.0**39
