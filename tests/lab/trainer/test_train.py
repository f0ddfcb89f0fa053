"""The trainer in one process: the same bits twice, and across every resume."""

import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import RUNS_ALL, some_of
from tests.kit.runs import assert_same
from tests.lab.training import (
    TRAINED,
    Interrupted,
    checkpoint,
    journal,
    per_step,
    run_until,
    small,
)

from trimtab.core.block import Block
from trimtab.core.errors import ConfigError, LabError
from trimtab.lab.corpus.data import Batch, WindowDataset
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.trainer.checkpoints import latest
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype

VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": Dtype.FP32, "measure": True},
    "bf16-accumulate": {"dtype": Dtype.BF16, "accumulate": 2},
    "fp16-accumulate": {"dtype": Dtype.FP16, "accumulate": 4, "measure": True},
}


@pytest.mark.parametrize("variant", some_of(VARIANTS, "fp16-accumulate"))
def test_a_resume_at_any_step_is_bit_identical(
    variant: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A scale that overflows at first: skipped steps must be saved too.
    overflowing = partial(torch.amp.GradScaler, init_scale=2.0**30)
    monkeypatch.setattr(torch.amp, "GradScaler", overflowing)
    config = small(**VARIANTS[variant], checkpoint_steps=1, steps=8)
    train(config, tmp_path / "whole", cache_dir=cache)
    whole = journal(tmp_path / "whole")
    # In CI one run, stopped while the scale overflows and again before the last step.
    for stops in [(stop,) for stop in range(1, 8)] if RUNS_ALL else [(2, 7)]:
        folder = tmp_path / f"stopped-{stops[0]}"
        for stop in stops:
            run_until(stop, config, folder, cache, resume=True)
        outcome = train(config, folder, cache_dir=cache, resume=True)
        assert outcome.first_step == stops[-1]
        found = journal(folder)
        for signal in (*TRAINED, "fingerprint", "eval_loss", "loss_scale", "max_attention_logit"):
            assert _exact(found, signal) == _exact(whole, signal), (stops, signal)
        _assert_same_state(folder, tmp_path / "whole", config.steps)


def _exact(block: Block, signal: str) -> dict[int, str]:
    """The signal to its last bit; NaN equals NaN."""
    return {step: value.hex() for step, value in per_step(block, signal).items()}


def _assert_same_state(one: Path, other: Path, step: int) -> None:
    """Weights, optimizer state, random state, schedule, scale and data position."""
    found, expected = checkpoint(one, step), checkpoint(other, step)
    assert all("exp_avg_sq" in state for state in found["optimizer"].values())
    assert_same(found, expected)


@pytest.mark.slow
def test_an_interrupted_step_is_repeated_completely(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(accumulate=4, checkpoint_steps=1, steps=5)
    train(config, tmp_path / "whole", cache_dir=cache)
    read = WindowDataset.__getitem__

    def fail(self: WindowDataset, position: int) -> Batch:
        if position == 14:  # the third of the four micro-batches of step 3
            raise Interrupted
        return read(self, position)

    monkeypatch.setattr(WindowDataset, "__getitem__", fail)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "cut", cache_dir=cache)
    monkeypatch.undo()
    assert train(config, tmp_path / "cut", cache_dir=cache, resume=True).first_step == 3
    cut, whole = journal(tmp_path / "cut"), journal(tmp_path / "whole")
    for signal in (*TRAINED, "fingerprint"):
        assert _exact(cut, signal) == _exact(whole, signal)
    _assert_same_state(tmp_path / "cut", tmp_path / "whole", config.steps)


def test_a_run_killed_while_saving_resumes_from_the_previous_checkpoint(
    tmp_path: Path, cache: Path
) -> None:
    config = small()
    run_until(9, config, tmp_path, cache)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000008.pt").rename(folder / "draft-00000008.pt")
    assert latest(folder) == folder / "step-00000004.pt"
    assert train(config, tmp_path, cache_dir=cache, resume=True).first_step == 4
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-00000004.pt",
        "step-00000008.pt",
        "step-00000012.pt",
    ]


def test_a_run_that_cannot_be_continued_is_refused_with_a_reason(
    tmp_path: Path, cache: Path
) -> None:
    train(small(steps=2), tmp_path, cache_dir=cache)
    with pytest.raises(ConfigError, match="already has a run"):
        train(small(steps=2), tmp_path, cache_dir=cache)
    with pytest.raises(ConfigError, match="started with batch_size 8, now it is 4"):
        train(small(steps=2, batch_size=4), tmp_path, cache_dir=cache, resume=True)
    path = tmp_path / "checkpoints/step-00000002.pt"
    for damage in (path.read_bytes()[:1000], b"{", pickle.dumps({"identity": print})):
        path.write_bytes(damage)
        with pytest.raises(LabError, match="cannot be loaded"):
            train(small(steps=2), tmp_path, cache_dir=cache, resume=True)
    path.unlink()
    path.with_suffix("").mkdir()  # as before 0.4
    with pytest.raises(LabError, match="cannot be loaded"):
        train(small(steps=2), tmp_path, cache_dir=cache, resume=True)


def test_evaluations_are_events_and_signals(tmp_path: Path, cache: Path) -> None:
    outcome = train(small(), tmp_path, cache_dir=cache)
    block = journal(tmp_path)
    evaluations = [event for event in block.events if event.kind == "evaluation"]
    assert [event.step for event in evaluations] == [0, 5, 10, 12]
    losses = per_step(block, "eval_loss")
    assert list(losses) == [0, 5, 10]
    assert [event.facts["loss"] for event in evaluations] == [*losses.values(), outcome.eval_loss]
    assert losses[0] == pytest.approx(math.log(512), abs=0.1)  # untrained
    assert outcome.eval_loss < losses[0] - 0.1
    saved = [event.facts["steps"] for event in block.events if event.kind == "checkpoint"]
    assert saved == [4, 8, 12]


def test_accumulation_changes_nothing_but_rounding(tmp_path: Path, cache: Path) -> None:
    for accumulate in (1, 4):
        config = small(dtype=Dtype.FP32, accumulate=accumulate, measure=True)
        train(config, tmp_path / str(accumulate), cache_dir=cache)
    one, four = (journal(tmp_path / name) for name in ("1", "4"))
    for signal in ("loss", "grad_norm", "tokens", "max_log_z", "max_token_loss"):
        assert four.column(signal).values == pytest.approx(one.column(signal).values, rel=1e-4)
    assert four.column("tokens").values.tolist() == [128.0] * 12
    assert four.data_position.tolist() == list(range(0, 48, 4))


def test_only_matrices_decay_and_the_norm_is_from_before_clipping(
    tmp_path: Path, cache: Path
) -> None:
    # Such a tight clip removes the gradient, so that only decay changes the weights.
    config = small(optimizer=OptimizerConfig(lr=0.1), warmup_steps=0, steps=1, clip=1e-30)
    train(config, tmp_path, cache_dir=cache)
    before = Gpt(config.model, generator=torch.Generator().manual_seed(0)).state_dict()
    after = checkpoint(tmp_path, 1)["model"]
    for name in before:
        kept = 1.0 if "norm" in name or "embed" in name else 1 - 0.1 * 0.1
        torch.testing.assert_close(after[name], kept * before[name], rtol=1e-6, atol=0)
    assert per_step(journal(tmp_path), "grad_norm")[0] > 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 6, "accumulate": 4}, "must divide into 4 micro-batches"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"warmup_steps": 13}, "warmup_steps must be 0 to 12"),
        ({"length": 0}, "length must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
    ],
)
def test_invalid_settings_are_an_error(
    settings: dict[str, Any], message: str, tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(small(**settings), tmp_path, cache_dir=cache)
