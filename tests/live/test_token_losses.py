"""The histogram of token losses, from `record(token_loss=)` to its second mode in an incident."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import EVERY_10, batches, journal_of, make_model
from tests.kit.user_loop import take_step, watching
from torch import nn
from torch.nn import functional as F

from trimtab.core.token_losses import NAMES, find_second_mode
from trimtab.live.measure import token_losses
from trimtab.live.measure.batch_facts import count_losses


def test_losses_are_counted_by_half_octaves_and_padding_is_not() -> None:
    losses = torch.tensor([[1.0, 1.1, 0.0, 12.0], [1e-9, 1e9, torch.inf, torch.nan]])
    counts = count_losses(losses)
    assert counts.sum() == 6  # neither padding nor NaN
    assert counts[0] == 1
    assert counts[31] == 2
    assert counts[NAMES.index("token_loss_share/001.000")] == 2
    assert not count_losses(losses[:, 0]).any()  # of sequences


def test_the_second_mode_of_a_batch_with_odd_sequences_is_found(tmp_path: Path) -> None:
    with watching(tmp_path, config=EVERY_10) as run:
        for step, batch in enumerate(batches(45)):
            logits = run.model(batch[:, :-1]).float()
            losses = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
            if step == 43:  # one sequence of four that the model gives no chance
                losses = losses + torch.tensor([0.0, 0.0, 30.0, 0.0])[:, None]
            take_step(run.guard, run.optimizer, losses.mean(), token_loss=losses)
    block = journal_of(tmp_path)
    present = np.flatnonzero(block.column(NAMES[0]).present)
    assert {0, 10, 20, 30, 40, 43} <= set(present.tolist())
    assert len(present) < 20  # with telemetry, and where the loss is higher
    mode = find_second_mode(block, 43, 44)
    assert mode is not None
    assert (mode.step, mode.share) == (43, 0.25)
    assert 25 < mode.loss < 40
    assert find_second_mode(block, 30, 42) is None


class Labelled(nn.Module):
    """Computes its loss itself, as models of transformers do."""

    def __init__(self, *, shifts: bool = True, is_fused: bool = False) -> None:
        super().__init__()
        self.inner = make_model()
        self.inner.dropout.p = 0.0
        self._shifts, self._is_fused = shifts, is_fused

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.inner(tokens)
        kept = (logits[:, :-1], labels[:, 1:]) if self._shifts else (logits, labels)
        loss = F.cross_entropy(kept[0].float().transpose(1, 2), kept[1])
        return SimpleNamespace(loss=loss, logits=None if self._is_fused else logits)


def train(folder: Path, model: nn.Module, *, gives: bool = False) -> None:
    """Train some steps with the last three labels of each sequence left out."""
    given: dict[str, Any] = {"token_loss": torch.full((2, 2), 50.0)} if gives else {}
    with watching(folder, model=model, config=EVERY_10) as run:
        for batch in batches(12):
            labels = torch.cat((batch[:, :-3], torch.full((len(batch), 3), -100)), dim=1)
            take_step(run.guard, run.optimizer, model(batch, labels=labels).loss, **given)


@pytest.mark.parametrize("shifts", [True, False])
def test_losses_are_taken_from_a_model_that_has_labels(
    shifts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_losses, "CHUNK", 1000)
    batch = next(iter(batches(1)))
    model = Labelled(shifts=shifts)
    logits, labels = model.inner(batch), batch.clone()
    labels[:, -3:] = -100
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    losses = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
    train(tmp_path, model)
    block = journal_of(tmp_path)
    assert np.flatnonzero(block.column(NAMES[0]).present).tolist() == [0, 10]
    counts = count_losses(losses.detach())
    found = [block.column(name).values[0] for name in NAMES]
    np.testing.assert_allclose(found, counts / counts.sum(), rtol=1e-6)


def test_of_many_logits_some_tokens_of_each_sequence_are_read() -> None:
    logits, labels = torch.randn(2, 64, 2**16), torch.randint(0, 2**16, (2, 64))
    labels[1, 60:] = -100
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    found = token_losses.token_losses(logits, labels, losses.sum() / (labels != -100).sum())
    assert torch.equal(found != 0, (torch.arange(64) % 4 == 0) & (labels != -100))
    assert torch.allclose(found[:, ::4], losses[:, ::4], atol=1e-4)


def test_what_the_user_gives_counts_alone(tmp_path: Path) -> None:
    train(tmp_path, Labelled(), gives=True)
    block = journal_of(tmp_path)
    assert block.column("token_loss_share/045.255").values[0] == 1.0


def test_a_fused_loss_has_no_tokens_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "trimtab"):
        train(tmp_path, Labelled(is_fused=True))
    assert sum("returns a loss and no logits" in line for line in caplog.messages) == 1
    assert NAMES[0] not in journal_of(tmp_path).columns
