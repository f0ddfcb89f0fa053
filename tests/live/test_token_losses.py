"""The histogram of token losses, from `record(token_loss=)` to its second mode in an incident."""

from pathlib import Path

import numpy as np
import torch
from tests.kit.tiny import batches, journal_of, make_model
from tests.kit.user_loop import adamw
from torch.nn import functional as F

import trimtab
from trimtab.explain.token_losses import NAMES, find_second_mode
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
    model = make_model()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for step, batch in enumerate(batches(45)):
            logits = model(batch[:, :-1]).float()
            losses = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
            if step == 43:  # one sequence of four that the model gives no chance
                losses = losses + torch.tensor([0.0, 0.0, 30.0, 0.0])[:, None]
            guard.record(loss=losses.mean(), token_loss=losses)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    block = journal_of(tmp_path)
    present = np.flatnonzero(block.column(NAMES[0]).present)
    assert {0, 10, 20, 30, 40, 43} <= set(present.tolist())
    assert len(present) < 20  # with telemetry, and where the loss is higher
    mode = find_second_mode(block, 43, 44)
    assert mode is not None
    assert (mode.step, mode.share) == (43, 0.25)
    assert 25 < mode.loss < 40
    assert find_second_mode(block, 30, 42) is None
