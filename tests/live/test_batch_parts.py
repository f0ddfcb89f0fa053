"""What is known of a batch: its facts, and token ids and losses on their way to its memory."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.tiny import batches, journal_of
from tests.kit.user_loop import watching

from trimtab.core import signals
from trimtab.live.measure.batch_facts import (
    MAX_KEPT_TOKENS,
    VALUES,
    BatchFacts,
    reduce_rows,
    report_left_out,
)

TEXT = torch.arange(20).reshape(2, 10)


@dataclass
class Batch:
    tokens: torch.Tensor
    targets: torch.Tensor
    name: str = "x"


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": TEXT, "attention_mask": torch.ones_like(TEXT)},
        (TEXT, torch.rand(3)),
        Batch(TEXT, TEXT),
        [TEXT],
    ],
)
def test_tokens_are_found_in_any_shape_of_batch(batch: Any) -> None:
    assert BatchFacts().measure([batch])[signals.UNIQUE_TOKEN_SHARE] == 1.0


def test_the_facts_of_a_batch() -> None:
    facts = BatchFacts()
    one, same, other = (
        facts.measure([batch])[signals.FINGERPRINT] for batch in (TEXT, TEXT.clone(), TEXT + 1)
    )
    assert one == same != other
    assert one == zlib.crc32(TEXT.numpy().tobytes())
    found = BatchFacts().measure([torch.full((4, 5), 7)])
    assert found[signals.UNIQUE_TOKEN_SHARE] == 1 / 20
    for _ in range(50):
        usual = facts.measure([TEXT % 3])[signals.TOKEN_RARITY]
    assert facts.measure([torch.full((2, 10), 900)])[signals.TOKEN_RARITY] > usual + 3


def test_what_is_not_on_the_host_or_no_token_is_left_out() -> None:
    facts = BatchFacts()
    assert facts.measure([torch.zeros(3, device="meta")]) == {}
    assert facts.measure(["text", None, 3]) == {}
    for numbers in (torch.rand(2, 3, 8, 8), torch.full((2, 2), -100)):
        found = facts.measure([numbers])
        assert signals.FINGERPRINT in found
        assert signals.TOKEN_RARITY not in found


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


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["jagged", "coo", "csr", "raises"])
def test_only_the_facts_of_an_odd_tensor_are_missing(
    layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report_left_out.cache_clear()
    caplog.set_level("INFO")
    with watching(tmp_path) as run:
        for step in run.guard.steps([[odd_tensor(layout), batch] for batch in batches(6)]):
            for _, batch in step:
                run.step(batch)
    block = journal_of(tmp_path)
    assert len(block) == 6
    has_failed = layout == "raises"
    assert ("failed in" in caplog.text) == has_failed
    assert bool(block.column("token_rarity").present.any()) != has_failed
    assert caplog.text.count("sparse and nested") == int(not has_failed)


def test_token_rows_are_copies_of_what_the_loader_served() -> None:
    served = torch.arange(12).reshape(3, 4)
    facts = BatchFacts()
    facts.measure([{"input_ids": served, "attention_mask": torch.ones_like(served)}])
    (kept,) = facts.pop_token_rows()
    served.zero_()
    assert kept.dtype == np.int32
    assert kept.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert facts.pop_token_rows() == ()
    facts.measure([torch.arange(6), torch.arange(8).reshape(2, 4)])  # two micro-batches
    assert [part.shape for part in facts.pop_token_rows()] == [(1, 6), (2, 4)]


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros((4, 9), dtype=torch.long, device="meta"),
        torch.rand(2, 3, 8, 8),
        torch.ones((2, 3, 8, 8), dtype=torch.uint8),
        torch.ones(MAX_KEPT_TOKENS + 1, dtype=torch.uint8),
    ],
    ids=["on a device", "floats", "bytes", "large"],
)
def test_batches_on_a_device_and_images_are_not_copied(batch: torch.Tensor) -> None:
    facts = BatchFacts()
    facts.measure([batch])
    assert facts.pop_token_rows() == ()


def test_losses_of_rows_leave_padding_out_and_keep_nan() -> None:
    losses = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0]], requires_grad=True)
    reduced = reduce_rows(losses).reshape(-1, VALUES)
    assert reduced.tolist() == [[2.0, 3.0, 1.0], [3.0, 6.0, 3.0]]
    assert not reduced.requires_grad
    of_rows = reduce_rows(torch.tensor([1.5, 2.5])).reshape(-1, VALUES)
    assert of_rows[:, 0].tolist() == [1.5, 2.5]
    with_nan = reduce_rows(torch.tensor([[1.0, torch.nan], [1.0, 2.0]])).reshape(-1, VALUES)
    assert torch.isnan(with_nan[0, 0])
    assert with_nan[1].tolist() == [1.5, 2.0, 1.0]


def test_odd_token_losses_are_reported_once_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path) as run:
        for odd in (torch.tensor(1.0), torch.zeros(0), 3.0, torch.zeros(9999), "x"):
            run.guard.record(token_loss=odd)
            run.guard.record(token_loss=odd)
    assert sum("token_loss is not" in message for message in caplog.messages) == 5
