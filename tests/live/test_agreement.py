"""What ranks settle before the first step, and that its cost does not grow with their number."""

import threading
from typing import Any

import pytest
from tests.kit.traffic import CountingStore
from torch._C._distributed_c10d import HashStore

from trimtab.core.errors import ConfigError
from trimtab.live.ranks import rank_group
from trimtab.live.ranks.rank_group import Agreement, GroupAgreement, RankFacts

SECONDS = 20.0


def agree(facts: list[RankFacts], seconds: float = SECONDS) -> tuple[list[Any], list[Any]]:
    """What each rank gets, or the error that it raises; and the store that it used."""
    shared = HashStore()
    stores = [CountingStore(shared) for _ in facts]
    ranks = list(range(len(facts)))
    found: list[Any] = [None] * len(facts)

    def take_part(rank: int) -> None:
        part = Agreement(stores[rank], rank, ranks)
        try:
            if facts[rank].is_enabled:
                found[rank] = part.reach(facts[rank], seconds)
            else:
                part.write(facts[rank])
        except ConfigError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, stores


def plain(**given: Any) -> RankFacts:
    return RankFacts(
        **{"num_optimizers": 1, "settings": "protect 2 10", "slots": ("a",), "names": "n", **given}
    )


def test_equal_ranks_agree_on_what_they_have() -> None:
    found, _ = agree([plain() for _ in range(6)])
    expected = GroupAgreement(off=(), num_holders=6, num_here=6, slots=("a",))
    assert found == [expected] * 6


def test_stages_hold_their_own_parameters_and_share_all_slots() -> None:
    first = plain(slots=("a", "b"), names="stage 0")
    second = plain(slots=("c", "b"), names="stage 1")
    found, _ = agree([first, second, second])
    assert [one.num_holders for one in found] == [1, 2, 2]
    assert {frozenset(one.slots) for one in found} == {frozenset("abc")}
    assert len({one.slots for one in found}) == 1


def test_a_rank_that_is_off_is_left_out_or_refused() -> None:
    off = RankFacts(is_enabled=False)
    observing = plain(settings="observe 2 10")
    found, _ = agree([off, observing, observing])
    assert found[1:] == [GroupAgreement(off=(0,), num_holders=2, num_here=3, slots=("a",))] * 2
    found, _ = agree([plain(), off, plain()])
    assert found[0] == found[2]
    assert "watch is switched off on rank 1" in found[0]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (plain(error="no memory"), "rank 2 could not start: no memory"),
        (plain(num_optimizers=2), "ranks differ in optimizers (1, 2)"),
        (plain(settings="observe 2 10"), "ranks differ in settings"),
    ],
)
def test_what_is_different_is_refused_on_all(other: RankFacts, sentence: str) -> None:
    found, _ = agree([plain(), plain(), other])
    assert len(set(found)) == 1
    assert sentence in found[0]


def test_a_second_watch_is_a_second_agreement() -> None:
    store = HashStore()
    for names in ("n", "m"):
        assert Agreement(store, 3, [3]).reach(plain(names=names), SECONDS).num_holders == 1


def test_the_missing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "_WARN_SECONDS", 0.2)
    store = HashStore()
    parts = [Agreement(store, rank, [0, 1, 2]) for rank in range(3)]
    parts[1].write(plain())
    with pytest.raises(ConfigError, match=r"rank 2 has not called trimtab.watch"):
        parts[0].reach(plain(), 0.1)


@pytest.mark.parametrize("world", [8, 64])
def test_no_rank_does_more_or_reads_more_with_more_ranks(world: int) -> None:
    _, stores = agree([plain() for _ in range(world)])
    assert max(store.calls.total() for store in stores) <= 24
    assert max(store.num_read for store in stores) <= 500
