"""Watching changes nothing in a healthy run, and sees the true numbers."""

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
    batches,
    journal_of,
    loss_of,
    muon_and_adamw,
    sgd,
    train,
)
from tests.kit.user_loop import column, watching
from torch import nn
from torch._dynamo.utils import counters

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
    "inductor whole": Setup(adamw(fused=True), compile=whole_inductor),
    "inductor per block": Setup(adamw(fused=True), compile=per_block_inductor),
}
SLOW = {"AdamW for-loop", "compiled per block", "inductor whole", "inductor per block"}
MOMENTARY = {"clock", "step_seconds", "tokens_per_second", "discarded"}
"""Signals in which two equal runs may differ."""


# Said by torch's own compiler: about a tensor between two compiled blocks, and about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


@pytest.mark.parametrize("name", some_of(SETUPS, *SETUPS.keys() - SLOW))
def test_bits_and_graphs_are_those_of_the_bare_run_in_every_mode(name: str, tmp_path: Path) -> None:
    steps = 200 if RUNS_ALL else 22  # with telemetry at each tenth
    # What is not fused is not promoted here, where the device is the host.
    setup = dataclasses.replace(SETUPS[name], steps=steps, guard_clips=True)
    ends = []
    for mode in ("", "observe", "protect"):
        torch._dynamo.reset()
        counters.clear()
        one = dataclasses.replace(setup, mode=mode or "observe")
        ends.append(train(one, tmp_path / mode if mode else None))
        assert not counters["graph_break"]
    bare = ends[0]
    for watched in ends[1:]:
        assert_same_bits(bare, watched)
        np.testing.assert_array_equal(watched.norms, bare.norms)

    observed, protected = (journal_of(tmp_path / mode) for mode in ("observe", "protect"))
    assert not protected.column("discarded").values.any()
    assert set(protected.columns) - MOMENTARY == set(observed.columns) - MOMENTARY
    for signal in set(observed.columns) - MOMENTARY:
        ours, theirs = protected.column(signal), observed.column(signal)
        np.testing.assert_array_equal(ours.present, theirs.present, err_msg=signal)
        np.testing.assert_array_equal(ours.values, theirs.values, err_msg=signal)

    assert len(observed) == steps
    norm, reference = observed.column("grad_norm"), np.array(bare.norms)
    assert norm.present.all()
    finite = np.isfinite(reference)
    np.testing.assert_allclose(norm.values[finite], reference[finite], rtol=1e-5)
    losses = np.array(bare.losses).reshape(-1, setup.accumulate).mean(axis=1)
    np.testing.assert_allclose(observed.column("loss").values, losses, rtol=1e-5)


def test_who_clips_by_himself_gets_post_clip_quality_and_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(adamw(fused=True), steps=60, clip=0.5)
    outcome = train(setup, tmp_path)
    assert_same_bits(outcome, train(setup, None))
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


@pytest.mark.parametrize("is_given", [True, False])
def test_the_norm_is_the_one_that_is_given_or_ours(is_given: bool, tmp_path: Path) -> None:
    norms = []
    with watching(tmp_path) as run:
        for batch in batches(20):
            loss = loss_of(run.model, batch)
            loss.backward()
            limit = 0.1 if is_given else torch.inf
            norms.append(torch.nn.utils.clip_grad_norm_(run.model.parameters(), limit))
            given = {"grad_norm": norms[-1]} if is_given else {}
            run.guard.record(loss=loss, **given)
            run.optimizer.step()
            run.optimizer.zero_grad()
    np.testing.assert_allclose(column(tmp_path, "grad_norm"), norms, rtol=1e-5)
