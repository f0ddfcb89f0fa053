"""The kernels, compared with the slowest code that is obviously right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples

from trimtab.corpus.counting import (
    DocumentReader,
    TokenCounter,
    find_phrase_runs,
    repeated_tokens,
    trim,
)
from trimtab.corpus.statistics import DocumentTable


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64", "uint64"])
def test_counts_are_those_of_numpy_and_bad_ids_are_counted_apart(dtype: str) -> None:
    tokens = np.random.default_rng(0).integers(0, 900, size=700_000).astype(dtype)
    tokens[5], tokens[600_000] = 60_000, 1_001
    if dtype.startswith("int"):
        tokens[7] = np.array(-1).astype(dtype)
    counter = TokenCounter(limit=1_000)
    counter.update(tokens)
    valid = tokens[(tokens < 1_000) & (tokens >= 0)]
    assert counter.out_of_range == len(tokens) - len(valid) > 1
    assert trim(counter.counts).tolist() == np.bincount(valid).tolist()


def test_one_huge_id_allocates_nothing() -> None:
    counter = TokenCounter()
    counter.update(np.array([1, 4_000_000_000], dtype=np.uint32))
    assert counter.out_of_range == 1
    assert len(counter.counts) <= 2**20


def slow_repeats(tokens: list[int], repeats: int, max_period: int) -> list[bool]:
    """Whether each token is in a phrase that occurs this many times in a row, by definition."""
    mask = [False] * len(tokens)
    for period in range(1, max_period + 1):
        span = period * repeats
        for start in range(len(tokens) - span + 1):
            phrase = tokens[start : start + period]
            if tokens[start : start + span] == phrase * repeats:
                mask[start : start + span] = [True] * span
    return mask


@settings(max_examples=examples(150), deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 12)),
        max_size=8,
    ),
    repeats=st.sampled_from([2, 4, 6]),
)
def test_repeated_tokens_are_those_of_the_definition(
    parts: list[tuple[list[int], int]], repeats: int
) -> None:
    tokens = [token for phrase, times in parts for token in phrase * times]
    array = np.array(tokens, dtype=np.uint16)
    runs = find_phrase_runs(array, repeats=repeats, max_period=5)
    assert repeated_tokens(array, runs).tolist() == slow_repeats(tokens, repeats, 5)


def test_a_phrase_is_reported_once_with_its_shortest_period() -> None:
    random = np.random.default_rng(1).integers(0, 50_000, size=5_000)
    tokens = np.concatenate([random, np.tile([7, 8, 9], 200), random]).astype(np.uint16)
    (run,) = find_phrase_runs(tokens)
    assert (run.start, run.stop, run.period) == (5_000, 5_600, 3)
    below = np.concatenate([random, np.tile([7, 8, 9], 31), random]).astype(np.uint16)
    assert find_phrase_runs(below) == []


def test_documents_are_the_same_however_the_stream_is_cut() -> None:
    random = np.random.default_rng(2)
    tokens = random.integers(0, 40, size=4_000).astype(np.uint16)  # 0 ends a document

    def read(piece: int) -> list[list[int]]:
        reader = DocumentReader(ends_with_separator=True)
        reader.begin(0)
        for start in range(0, len(tokens), piece):
            part = tokens[start : start + piece]
            reader.update(part, start, (np.flatnonzero(part == 0) + start + 1).tolist())
        return [column.tolist() for column in reader.pop()]

    starts, lengths, hashes = read(4_000)
    ends = np.flatnonzero(tokens == 0)
    assert starts == [0, *(ends[:-1] + 1).tolist()]
    assert lengths == (np.diff([-1, *ends]) - 1).tolist()
    assert len(set(hashes)) > 50
    for piece in (1, 7, 1_000):
        assert read(piece) == [starts, lengths, hashes]


def test_the_table_of_documents_does_not_depend_on_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trimtab.corpus.statistics.MAX_KEPT", 500)
    random = np.random.default_rng(3)
    hashes = random.integers(0, 2**63, size=3_000).astype(np.uint64)
    hashes = np.concatenate([hashes, hashes[:900]])
    places = np.arange(len(hashes))
    lengths = (hashes % np.uint64(90) + np.uint64(1)).astype(np.int64)

    def table(order: np.ndarray) -> DocumentTable:
        total = DocumentTable()
        for part in np.array_split(order, 7):
            one = DocumentTable()
            one.add(0, places[part], lengths[part], hashes[part])
            total.merge(one)
        return total

    first, second = table(places), table(random.permutation(places))
    assert first.level == second.level > 0
    for ours, theirs in zip(first.columns, second.columns, strict=True):
        assert ours.tolist() == theirs.tolist()
    assert first.duplicates == pytest.approx(900, rel=0.35)  # a sample of 500
    assert first.most_repeated(3)[0][3] == 2
