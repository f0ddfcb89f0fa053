"""Rare tokens are spread over the batches, on any sampler, loader and number of ranks."""

import json
import logging
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples

from trimtab.core.errors import ConfigError
from trimtab.corpus import (
    RareRows,
    Shuffle,
    SpreadBatches,
    find_rare_rows,
    find_rare_windows,
    spread_rare,
)
from trimtab.corpus.spread import spread


def make_rare(
    seed: int, num_rows: int = 400, tokens: int = 12, times: int = 9, start: int = 0
) -> RareRows:
    """Some tokens, each in `times` different rows."""
    random = np.random.default_rng(seed)
    rows = [random.choice(np.arange(start, num_rows), times, replace=False) for _ in range(tokens)]
    ids = np.repeat(np.arange(tokens), times)
    return RareRows.of(np.concatenate(rows), ids, num_rows)


def repeats_in(batches: list[list[int]], rare: RareRows) -> int:
    """Occurrences of a token that its batch has already, counted one by one."""
    by_row: dict[int, list[int]] = {}
    for row, token in zip(rare.rows.tolist(), rare.tokens.tolist(), strict=True):
        by_row.setdefault(row, []).append(token)
    found = 0
    for batch in batches:
        counts = Counter(token for row in batch for token in by_row.get(row, []))
        found += sum(count - 1 for count in counts.values())
    return found


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 10**6), batch_rows=st.integers(2, 20), times=st.integers(2, 9))
def test_no_batch_has_a_rare_token_twice_and_no_row_is_lost(
    seed: int, batch_rows: int, times: int
) -> None:
    rare = make_rare(seed, num_rows=300, tokens=10, times=times)
    order = np.random.default_rng(seed).permutation(300)
    found = spread(order, rare, batch_rows, (seed,))
    cuts = range(0, 300, batch_rows)
    before = [order[start : start + batch_rows].tolist() for start in cuts]
    after = [found.order[start : start + batch_rows].tolist() for start in cuts]
    assert sorted(found.order.tolist()) == list(range(300))
    assert found.repeated_before == repeats_in(before, rare)
    assert found.repeated == repeats_in(after, rare) == 0


def test_rows_without_rare_tokens_keep_their_order_but_for_those_that_make_room() -> None:
    rare = make_rare(0)
    order = np.random.default_rng(0).permutation(400)
    found = spread(order, rare, 20, (0,))
    assert 0 < found.moved < 60
    assert (found.order != order).sum() <= 2 * found.moved


def test_rows_with_rare_tokens_are_shared_out_evenly_even_if_no_token_is_the_same() -> None:
    rare = RareRows.of(np.arange(40), np.arange(40), 400)  # one after the other
    found = spread(np.arange(400), rare, 10, (0,))
    holders = np.bincount(np.flatnonzero(found.order < 40) // 10, minlength=40)
    assert holders.tolist() == [1] * 40


def test_what_cannot_be_spread_is_counted() -> None:
    rows = np.array([3, 3, 3, 5, 7, 9])
    rare = RareRows.of(rows, np.array([1, 1, 2, 1, 1, 1]), 12)
    assert rare.unavoidable == 1
    found = spread(np.arange(12), rare, 4, (0,))  # 4 rows with token 1 in 3 batches
    assert found.repeated == 2
    everywhere = RareRows.of(np.arange(12), np.ones(12, dtype=np.int64), 12)
    assert spread(np.arange(12), everywhere, 4, (0,)).repeated == 9


def test_rows_are_spread_even_if_all_of_them_have_rare_tokens() -> None:
    random = np.random.default_rng(5)
    rows, tokens = np.repeat(np.arange(400), 3), random.permutation(np.repeat(np.arange(240), 5))
    rare = RareRows.of(rows, tokens, 400)
    found = spread(random.permutation(400), rare, 10, (0,))
    assert found.repeated_before - rare.unavoidable > 40
    assert found.repeated == rare.unavoidable


def test_an_order_that_has_no_conflict_is_left_alone() -> None:
    order = np.random.default_rng(4).permutation(50)
    none = RareRows.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 50)
    assert spread(order, none, 7, (1,)).order.tolist() == order.tolist()


def make_batches(rank: int = 0, world_size: int = 1, **settings: int) -> SpreadBatches:
    sampler = Shuffle(400, seed=5)
    settings = {"batch_size": 4, "accumulate": 2} | settings
    return spread_rare(sampler, make_rare(1), rank=rank, world_size=world_size, **settings)  # type: ignore[arg-type]


def test_ranks_share_one_plan_and_see_every_row_once() -> None:
    whole = [row for batch in make_batches(batch_size=12) for row in batch]
    ranks = [list(make_batches(rank, 3)) for rank in range(3)]
    assert len({len(batches) for batches in ranks}) == 1
    steps = [
        [row for rank in ranks for micro in (0, 1) for row in rank[2 * step + micro]]
        for step in range(len(ranks[0]) // 2)
    ]
    assert sorted(row for step in steps for row in step) == sorted(whole)
    assert repeats_in(steps, make_rare(1)) == 0
    held = [sum(row in set(make_rare(1).rows.tolist()) for b in r for row in b) for r in ranks]
    assert max(held) - min(held) < 0.5 * max(held)


def test_epochs_differ_and_are_the_same_again() -> None:
    batches = make_batches()
    first, second = list(batches), list(batches)
    assert first != second
    again = make_batches()
    again.set_epoch(1)
    assert list(again) == second


@pytest.mark.parametrize("stop", [0, 1, 7, 49, 50, 71, 100])
def test_a_resume_goes_on_with_the_very_next_batch(stop: int) -> None:
    whole = make_batches()
    expected = [*whole, *whole]
    stopped = make_batches()
    seen: list[list[int]] = []
    while len(seen) < stop:
        for batch in stopped:
            seen.append(batch)
            if len(seen) == stop:
                break
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = make_batches()
    resumed.load_state_dict(state)
    rest = list(resumed)
    if stop < 50:
        rest += list(resumed)
    assert seen + rest == expected[: len(seen + rest)]
    assert len(seen + rest) >= 100


def test_a_resume_with_another_number_of_ranks_continues_at_the_same_step() -> None:
    one = make_batches(batch_size=12)
    steps = iter(one)
    for _ in range(6):
        next(steps)
    three = [make_batches(rank, 3) for rank in range(3)]
    for rank in three:
        rank.load_state_dict(one.state_dict())
    after = sorted(row for _ in (0, 1) for row in next(steps))
    ranks = [iter(rank) for rank in three]
    assert sorted(row for _ in (0, 1) for rank in ranks for row in next(rank)) == after
    with pytest.raises(ConfigError, match="rows per step"):
        make_batches(batch_size=5).load_state_dict(one.state_dict())


def test_a_sampler_that_gives_another_order_after_a_resume_is_refused() -> None:
    batches = spread_rare(Shuffle(400, seed=5), make_rare(1), batch_size=4)
    next(iter(batches))
    other = spread_rare(Shuffle(400, seed=6), make_rare(1), batch_size=4)
    other.load_state_dict(batches.state_dict())
    with pytest.raises(ConfigError, match="different order"):
        list(other)


def test_a_sampler_of_one_rank_and_wrong_settings_are_refused() -> None:
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.DistributedSampler(range(400), num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match="rows of one rank"):
        spread_rare(sampler, make_rare(1), batch_size=4)
    with pytest.raises(ConfigError, match="at least 1"):
        spread_rare(Shuffle(400), make_rare(1), batch_size=4, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="drop_last"):
        spread_rare(Shuffle(400), make_rare(1), batch_size=4, world_size=2, drop_last=False)
    with pytest.raises(ConfigError, match="400 rows"):
        list(spread_rare(Shuffle(500), make_rare(1), batch_size=4))


def test_it_says_how_many_repeats_are_left(caplog: pytest.LogCaptureFixture) -> None:
    rare = RareRows.of(np.array([1, 1, 2]), np.array([7, 7, 7]), 8)
    with caplog.at_level(logging.INFO, logger="trimtab"):
        batches = spread_rare(Shuffle(8), rare, batch_size=2, drop_last=False)
        assert batches.plan.repeated == 1
    assert "rare tokens twice in a step: 1 (before:" in caplog.text
    assert "within one row: 1" in caplog.text


def test_rare_rows_are_found_in_windows_rows_and_columns() -> None:
    tokens = np.arange(1_000, dtype=np.uint16) % 97
    rare = [5, 96, 30_000]
    windows = find_rare_windows(tokens, rare, 64)
    rows = [tokens[start : start + 64] for start in range(0, 960, 64)]
    places = np.flatnonzero(np.isin(tokens[:960], rare))
    assert windows.num_rows == 15
    assert windows.rows.tolist() == (places // 64).tolist()
    for dataset in (rows, [row.tolist() for row in rows], [{"input_ids": row} for row in rows]):
        found = find_rare_rows(dataset, rare)
        assert found.rows.tolist() == windows.rows.tolist()
        assert sorted(found.tokens.tolist()) == sorted(tokens[places].tolist())
        assert found.num_rows == 15
    assert not len(find_rare_windows(tokens, [], 64).rows)


def test_ids_beyond_the_type_and_negative_padding_are_not_rare() -> None:
    assert not len(find_rare_windows(np.arange(64, dtype=np.uint16), [70_000], 8).rows)
    padded = [np.array([3, 1, -100, -1]), np.array([2, 0, -100, -1])]
    found = find_rare_rows(padded, [0, 3, 2, 99, 98])
    assert sorted(found.tokens.tolist()) == [0, 2, 3]


def test_a_hopeless_order_does_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.corpus.spread._MAX_LOOKS", 50)
    everywhere = RareRows.of(np.arange(1_000), np.ones(1_000, dtype=np.int64), 1_000)
    begin = time.process_time()
    assert spread(np.arange(1_000), everywhere, 4, (0,)).repeated == 750
    assert time.process_time() - begin < 4  # without the limit it takes eight seconds
