"""Batches by data position: the same for any number of ranks, and after a resume."""

from itertools import islice

import numpy as np
import pytest
import torch

from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.data import (
    Batch,
    CorpusSplit,
    DataConfig,
    Loader,
    TokenCorpus,
    WindowDataset,
)

CONFIG = DataConfig(batch_size=8, length=16, seed=5)


def same(one: Batch, other: Batch) -> bool:
    return (
        one.position == other.position
        and torch.equal(one.tokens, other.tokens)
        and torch.equal(one.targets, other.targets)
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_all_ranks_together_have_the_same_global_batch(
    corpus: TokenCorpus, world_size: int
) -> None:
    whole = WindowDataset(corpus, CONFIG)
    ranks = [
        Loader(WindowDataset(corpus, CONFIG, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for position, parts in enumerate(islice(zip(*ranks, strict=True), 6)):
        batch = whole[position]
        assert [part.position for part in parts] == [position] * world_size
        assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
        assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)


def test_an_epoch_has_every_window_once_and_the_next_one_a_different_order(
    corpus: TokenCorpus,
) -> None:
    config = DataConfig(batch_size=7, length=512, seed=1)
    data = WindowDataset(corpus, config)
    epochs = 3
    batches = [data[position] for position in range(epochs * data.windows // 7 + 1)]
    rows = torch.cat([batch.tokens for batch in batches]).numpy()
    first, second, third = (
        [row.tobytes() for row in rows[epoch * data.windows : (epoch + 1) * data.windows]]
        for epoch in range(epochs)
    )
    assert sorted(first) == sorted(second) == sorted(third)
    assert first != second != third
    windows = [
        np.asarray(tokens[start : start + 512], dtype=np.int64).tobytes()
        for tokens in corpus.tokens(CorpusSplit.TRAIN).values()
        for start in range(0, len(tokens) - 512, 512)
    ]
    assert sorted(first) == sorted(windows)


@pytest.mark.parametrize("resume_at", [1, 7])
def test_a_resume_continues_exactly(corpus: TokenCorpus, resume_at: int) -> None:
    # Long windows: the second epoch starts within these batches.
    config = DataConfig(batch_size=64, length=256)
    data = WindowDataset(corpus, config)
    assert 0 < data.windows < 15 * 64
    straight = list(islice(Loader(data), 16))
    loader = Loader(data)
    batches = iter(loader)
    for _ in range(resume_at):
        next(batches)
    state = loader.state_dict()
    next(batches)  # moves beyond the saved state

    fresh = Loader(WindowDataset(corpus, config))
    fresh.load_state_dict(state)
    loader.load_state_dict(state)  # the live one is rolled back
    for resumed in (fresh, loader):
        rest = list(islice(resumed, 16 - resume_at))
        assert all(same(*pair) for pair in zip(rest, straight[resume_at:], strict=True))


def test_an_impossible_split_into_batches_is_an_error(corpus: TokenCorpus) -> None:
    with pytest.raises(ConfigError, match="must be divisible by 3 ranks"):
        WindowDataset(corpus, CONFIG, world_size=3)
    with pytest.raises(ConfigError, match="rank must be in 0 to 1, got 2"):
        WindowDataset(corpus, CONFIG, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="no window of 10000000 tokens"):
        WindowDataset(corpus, DataConfig(batch_size=1, length=10**7))
    with pytest.raises(ConfigError, match="length must be at least 1"):
        DataConfig(batch_size=1, length=0)
    with pytest.raises(ConfigError, match="seed must not be negative"):
        DataConfig(batch_size=1, length=1, seed=-1)
