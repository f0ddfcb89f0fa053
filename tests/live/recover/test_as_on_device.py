"""Bits that are summed as on an accelerator: nothing is read or copied, and flips are undone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.kit.tiny import batches
from tests.kit.undo import KINDS, Loop, flip_moment, flip_weight, same, train, undos
from tests.live.test_host_copies import HostCopies, WithStatistics, edit
from torch import optim

import trimtab
from trimtab.selftest.promises import READS, Counting

pytestmark = pytest.mark.usefixtures("device_path")


@pytest.mark.parametrize("harm", [flip_weight, flip_moment])
@pytest.mark.parametrize("name", ["plain", "fused", "two optimizers"])
def test_a_flipped_bit_is_undone(name: str, harm: Callable[[Loop], None], tmp_path: Path) -> None:
    loop = train(KINDS[name], tmp_path, "recover", edits={25: harm})
    (undo,) = undos(tmp_path)
    assert "flipped in memory" in str(undo.facts["why"])
    lost = int(undo.facts["updates_lost"])
    assert same(loop.states[undo.step], loop.states[undo.step - lost - 1])


@pytest.mark.parametrize("edits", [False, True])
def test_nothing_is_read_or_copied_in_a_step(edits: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WithStatistics()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    copies, reads = HostCopies(), Counting()
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="recover") as guard:
        for number, batch in enumerate(batches(60)):
            is_late = number >= 20
            with copies if is_late else HostCopies(), reads if is_late else Counting():
                loss = model(batch)
                guard.record(loss=loss, tokens=batch.numel())
                loss.backward()
                if edits:
                    edit(model, number)
                optimizer.step()
                optimizer.zero_grad()
    assert not copies.lines
    assert sum(reads.counts[name] for name in READS) == 0
