"""With real loaders: torch, torchdata, HF datasets."""

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trimtab.corpus import (  # noqa: E402
    RareRows,
    Shuffle,
    SpreadBatches,
    find_rare_rows,
    find_rare_windows,
    mask_repeats,
    spread_rare,
)

ROWS = np.random.default_rng(0).integers(0, 3_000, size=(200, 16))
RARE = np.flatnonzero(np.bincount(ROWS.ravel(), minlength=3_000) < 3)


class Rows:
    """Rows of token ids."""

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(ROWS[row])

    def __len__(self) -> int:
        return len(ROWS)


def rare_rows() -> RareRows:
    return find_rare_windows(ROWS.ravel(), RARE, 16)


def make_batches(sampler: Any = None) -> SpreadBatches:
    return spread_rare(sampler or Shuffle(200, seed=3), rare_rows(), batch_size=8)


def test_a_plain_loader_and_the_random_sampler_of_torch() -> None:
    def batches() -> SpreadBatches:
        generator = torch.Generator().manual_seed(1)
        return make_batches(torch.utils.data.RandomSampler(Rows(), generator=generator))

    sampler = batches()
    loader = torch.utils.data.DataLoader(Rows(), batch_sampler=sampler)
    seen = [batch.tolist() for _ in range(2) for batch in loader]
    assert len(seen) == 50
    assert len(loader) == 25
    for batch in seen:
        counts = np.bincount(np.ravel(batch), minlength=3_000)[RARE]
        assert counts.max() <= 1 or sampler.plan.repeated
    # Resumed in the second epoch: the generator gives the orders of both again.
    resumed = batches()
    state = {**sampler.state_dict(), "rows": 40}
    resumed.load_state_dict(state)
    again = torch.utils.data.DataLoader(Rows(), batch_sampler=resumed)
    assert [batch.tolist() for batch in again] == seen[30:]


# torchdata 0.11 calls a function that torch 2.13 deprecates.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_exactly(workers: int) -> None:
    pytest.importorskip("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    def loader() -> Any:
        return StatefulDataLoader(
            Rows(),
            batch_sampler=make_batches(),
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    whole = loader()
    expected = [batch.tolist() for _ in range(2) for batch in whole]
    stopped = loader()
    seen = [batch.tolist() for batch in itertools.islice(stopped, 9)]
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    seen += [batch.tolist() for batch in resumed]
    seen += [batch.tolist() for batch in resumed]
    assert seen == expected


def test_a_dataset_of_hf() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"input_ids": ROWS.tolist()})
    rare = find_rare_rows(data, RARE)
    assert rare.rows.tolist() == rare_rows().rows.tolist()
    shuffled = data.shuffle(seed=0)
    again = find_rare_rows(shuffled, RARE)
    assert sorted(again.tokens.tolist()) == sorted(rare.tokens.tolist())
    assert again.rows.tolist() != rare.rows.tolist()
    batches = spread_rare(Shuffle(200, seed=3), rare, batch_size=8)
    loader = torch.utils.data.DataLoader(data.with_format("torch"), batch_sampler=batches)
    assert [b["input_ids"].tolist() for b in loader] == [ROWS[b].tolist() for b in make_batches()]
    selected = data.select(batches.plan.order)
    assert selected[:8]["input_ids"] == ROWS[make_batches().batch(0)].tolist()


class TestMask:
    rows = np.random.default_rng(1).integers(0, 3_000, size=(3, 300))
    rows[1, 50:220] = np.tile([4, 5, 6, 7, 8], 34)

    def test_labels_of_a_repeated_phrase_are_ignored(self) -> None:
        for labels in (self.rows.copy(), torch.from_numpy(self.rows.copy())):
            source = labels.clone() if hasattr(labels, "clone") else labels.copy()
            masked = mask_repeats(source, labels)
            ignored = np.asarray(masked == -100)
            assert ignored[1, 50:220].all()
            assert ignored.sum() == 170
            assert np.array_equal(labels, self.rows)  # the given labels stay
        whole = mask_repeats(self.rows, self.rows, whole_rows=True)
        assert (whole == -100).sum() == 300

    def test_a_map_of_hf_datasets(self) -> None:
        datasets = pytest.importorskip("datasets")
        ragged = [self.rows[0, :40].tolist(), self.rows[1].tolist()]
        data = datasets.Dataset.from_dict({"input_ids": ragged})
        data = data.map(
            lambda batch: {"labels": mask_repeats(batch["input_ids"], batch["input_ids"])},
            batched=True,
        )
        assert data[0]["labels"] == ragged[0]
        assert data[1]["labels"].count(-100) == 170

    def test_fewer_repeats_are_left_alone(self) -> None:
        row = np.tile([1, 2, 3], 31)
        assert (mask_repeats(row, row) == row).all()
        assert (mask_repeats(row, row, repeats=31) == -100).all()
