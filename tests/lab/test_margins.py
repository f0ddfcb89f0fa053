"""The grid of safeguards: its cells, its file, what counts as failed."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trimtab.lab import margins as module
from trimtab.lab.margins import (
    LEFT_OUT,
    RATES,
    SAFEGUARDS,
    Cell,
    frequency_loss,
    margins,
    read_losses,
    train_cell,
    train_grid,
)
from trimtab.lab.trainer.train_config import Dtype

if TYPE_CHECKING:
    from trimtab.lab.corpus.data import TokenCorpus


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 2)


def test_a_cell_leaves_out_what_it_says_and_nothing_else() -> None:
    full = Cell(left_out=(), lr=3e-3, seed=0).config()
    bare = Cell(left_out=tuple(SAFEGUARDS), lr=3e-3, seed=0).config()
    assert (full.clip, full.optimizer.beta2, full.optimizer.weight_decay) == (1.0, 0.95, 0.1)
    assert (bare.clip, bare.optimizer.beta2, bare.optimizer.weight_decay) == (None, 0.999, 0.0)
    assert (full.dtype, bare.dtype, bare.warmup) == (Dtype.BF16, Dtype.FP16, 0)
    assert (full.model.qk_norm, full.model.post_norm) == (True, False)
    assert (bare.model.qk_norm, bare.model.post_norm) == (False, True)
    assert len(LEFT_OUT) == len(set(LEFT_OUT)) == 1 + 7 + 21


def test_an_interrupted_grid_goes_on_where_it_stopped(
    corpus: "TokenCorpus", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trained = tmp_path / "results" / "margins.jsonl", list[Cell]()
    stop = 3

    def train(cell: Cell, _: object) -> float:
        if len(trained) == stop:
            raise KeyboardInterrupt
        trained.append(cell)
        return 5.0

    monkeypatch.setattr(module, "train_cell", train)
    with pytest.raises(KeyboardInterrupt):
        train_grid(path, corpus, 1, math.inf, lambda done, total: None)
    with path.open("a") as file:  # another setting, and a line that was being written
        file.write(json.dumps({"left_out": [], "lr": 1.0, "seed": 0, "steps": 9, "loss": "1"}))
        file.write('\n[1]\nnull\n{"left_out": ["clip')
    first = list(trained)
    assert list(read_losses(path)) == first
    stop = 0
    train_grid(path, corpus, 1, -1.0, lambda done, total: None)
    assert trained == first  # no time is left
    train_grid(path, corpus, 1, math.inf, lambda done, total: None)
    assert len(trained) == len(set(trained)) == 29 * len(RATES)
    assert {cell.seed for cell in trained} == {0}
    # The torn line took the next one with it: only that cell is trained again.
    assert len(read_losses(path)) == 29 * len(RATES) - 1


def test_what_is_not_finite_or_learnt_frequencies_alone_has_failed(corpus: "TokenCorpus") -> None:
    frequencies = frequency_loss(corpus)
    assert 4.0 < frequencies < math.log(512)
    losses = {
        Cell(left_out=one, lr=lr, seed=seed): 4.0
        for one in LEFT_OUT
        for lr in RATES
        for seed in range(3)
    }
    wanted = ("clipping", "QK-norm")
    for seed, loss in enumerate((math.inf, frequencies - 0.05, frequencies - 0.2)):
        losses[Cell(left_out=wanted, lr=RATES[-1], seed=seed)] = loss
    found = margins(losses, corpus)
    assert str(found[wanted, RATES[-1]]) == f"2 of 3, {frequencies - 0.125:.2f}"
    assert sum(one.num_failed for one in found.values()) == 2
    assert margins({}, corpus) == {}


def test_a_cell_is_trained_and_one_that_is_not_finite_ends_at_once(corpus: "TokenCorpus") -> None:
    cell = Cell(left_out=("bf16",), lr=3e-3, seed=0)
    assert train_cell(cell, corpus) < 7.0
    assert train_cell(Cell(left_out=("clipping",), lr=1e30, seed=0), corpus) == math.inf
