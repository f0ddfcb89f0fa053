"""Token ids and losses of sequences on their way to the batch memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, journal_of, loss_of, make_model

import trimtab
from trimtab.live.measure.batch_facts import (
    MAX_KEPT_TOKENS,
    VALUES,
    BatchFacts,
    reduce_rows,
    report_left_out,
)


class TestOddBatches:
    @pytest.mark.filterwarnings("ignore:Sparse")
    @pytest.mark.parametrize("layout", ["jagged", "coo", "csr", "raises"])
    def test_only_the_facts_of_an_odd_tensor_are_missing(
        self, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        report_left_out.cache_clear()
        caplog.set_level("INFO")
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        served = [[odd_tensor(layout), batch] for batch in batches(6)]
        with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
            for step in guard.steps(served):
                for _, batch in step:
                    loss = loss_of(model, batch)
                    guard.record(loss=loss)
                    loss.backward()
                optimizer.step()
        block = journal_of(tmp_path)
        assert len(block) == 6
        has_failed = layout == "raises"
        assert ("failed in" in caplog.text) == has_failed
        assert bool(block.column("token_rarity").present.any()) != has_failed
        assert caplog.text.count("sparse and nested") == int(not has_failed)


class Broken(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise RuntimeError("planted")


def odd_tensor(layout: str) -> Any:
    eye = torch.eye(3)
    if layout == "jagged":
        return torch.nested.nested_tensor([eye[0], eye[1, :2]], layout=torch.jagged)
    if layout == "raises":
        return Broken(x=eye)
    return eye.to_sparse() if layout == "coo" else eye.to_sparse_csr()


class TestTokenRows:
    def test_they_are_copies_of_what_the_loader_served(self) -> None:
        served = torch.arange(12).reshape(3, 4)
        facts = BatchFacts()
        facts.measure([{"input_ids": served, "attention_mask": torch.ones_like(served)}])
        (kept,) = facts.pop_token_rows()
        served.zero_()
        assert kept.dtype == np.int32
        assert kept.tolist() == np.arange(12).reshape(3, 4).tolist()
        assert facts.pop_token_rows() == ()

    def test_each_micro_batch_is_kept_and_one_sequence_is_a_row(self) -> None:
        facts = BatchFacts()
        facts.measure([torch.arange(6), torch.arange(8).reshape(2, 4)])
        assert [part.shape for part in facts.pop_token_rows()] == [(1, 6), (2, 4)]

    def test_batches_on_a_device_and_images_are_not_copied(self) -> None:
        facts = BatchFacts()
        for batch in (
            torch.zeros((4, 9), dtype=torch.long, device="meta"),
            torch.rand(2, 3, 8, 8),
            torch.ones((2, 3, 8, 8), dtype=torch.uint8),
            torch.ones(MAX_KEPT_TOKENS + 1, dtype=torch.uint8),
        ):
            facts.measure([batch])
            assert facts.pop_token_rows() == ()


class TestRowLosses:
    def test_mean_and_largest_leave_padding_out(self) -> None:
        losses = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0]], requires_grad=True)
        reduced = reduce_rows(losses).reshape(-1, VALUES)
        assert reduced.tolist() == [[2.0, 3.0, 1.0], [3.0, 6.0, 3.0]]
        assert not reduced.requires_grad

    def test_one_loss_per_sequence_stays_as_it_is(self) -> None:
        assert reduce_rows(torch.tensor([1.5, 2.5])).reshape(-1, VALUES)[:, 0].tolist() == [
            1.5,
            2.5,
        ]

    def test_a_sequence_with_nan_is_nan(self) -> None:
        reduced = reduce_rows(torch.tensor([[1.0, float("nan")], [1.0, 2.0]])).reshape(-1, VALUES)
        assert torch.isnan(reduced[0, 0])
        assert reduced[1].tolist() == [1.5, 2.0, 1.0]


def test_odd_token_losses_are_reported_once_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for odd in (torch.tensor(1.0), torch.zeros(0), 3.0, torch.zeros(9999), "x"):
            guard.record(token_loss=odd)  # type: ignore[arg-type]
            guard.record(token_loss=odd)  # type: ignore[arg-type]
    assert sum("token_loss is not" in message for message in caplog.messages) == 5
