"""The order of an epoch, changed as little as needed so that no batch has a rare token twice.

    for each batch with too much: move a row out, and a row without rare tokens in
    too much = a rare token twice, or more rare tokens than the even share of a batch

A row moves to a random batch in which its tokens do not occur. Rows without rare tokens stay in
their order, except the few that change places with a moved row.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from trimtab.data.rare_rows import Ids, RareRows

_TRIES = 32
"""Random batches that are tried before all are looked at, from a random one on."""

_MAX_LOOKS = 2_000_000
"""Batches that are looked at in this way in an epoch, about two seconds: where no order helps, the
search should not last for hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOrder:
    """The order of an epoch, and what could not be spread."""

    order: Ids
    """Rows in the order in which they are trained."""
    repeated: int
    """Occurrences of a rare token that is in the same batch already."""
    repeated_before: int
    """The same in the order that was given."""
    moved: int
    """Rows that changed places."""


def spread(order: Ids, rare: RareRows, batch_rows: int, seed: tuple[int, ...]) -> SpreadOrder:
    """Spread the rows with rare tokens over the batches of an order; `seed` decides where to."""
    plan = _Batches(order, rare, batch_rows)
    before = plan.repeated()
    random = np.random.default_rng(seed)
    moved = 0
    for batch, place in plan.surplus():
        target = plan.find_target(place, batch, random)
        if target is not None:
            plan.swap(place, target)
            moved += 1
    return SpreadOrder(
        order=plan.order, repeated=plan.repeated(), repeated_before=before, moved=moved
    )


class _Batches:
    """The rare tokens in each batch of an order."""

    def __init__(self, order: Ids, rare: RareRows, batch_rows: int) -> None:
        self.order = np.array(order, dtype=np.int64)
        self._rows = batch_rows
        self._num = -(-len(self.order) // batch_rows)
        self._looks = _MAX_LOOKS
        places = _places(self.order, rare)
        self._tokens: dict[int, list[int]] = defaultdict(list)
        for place, token in zip(places.tolist(), rare.tokens.tolist(), strict=True):
            if place >= 0:
                self._tokens[place].append(token)
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._members: dict[int, list[int]] = defaultdict(list)
        for place in sorted(self._tokens):
            self._members[place // batch_rows].append(place)
            self._counts[place // batch_rows].update(self._tokens[place])
        even = -(-len(rare.tokens) // max(self._num, 1))
        # No order can do better than to give the row with most rare tokens a batch of its own.
        self._share = max(even, max(map(len, self._tokens.values()), default=0))

    def repeated(self) -> int:
        """Occurrences of a token that is in the same batch already."""
        return sum(n - 1 for counts in self._counts.values() for n in counts.values() if n > 1)

    def surplus(self) -> list[tuple[int, int]]:
        """Batches with a row that should move; of rows that do not go together, the lighter one."""
        found = []
        for batch, members in sorted(self._members.items()):
            seen: set[int] = set()
            load = 0
            for place in sorted(members, key=lambda place: -len(self._tokens[place])):
                tokens = self._tokens[place]
                if load + len(tokens) > self._share or not seen.isdisjoint(tokens):
                    found.append((batch, place))
                else:
                    load += len(tokens)
                    seen.update(tokens)
        return found

    def find_target(self, place: int, batch: int, random: np.random.Generator) -> int | None:
        """The place of a row without rare tokens in a batch without this row's tokens.

        None if every batch has one of them, or if the row does no harm where it is.
        """
        tokens = set(self._tokens[place])
        tries = random.integers(self._num, size=_TRIES).tolist()
        start = int(random.integers(self._num))
        every = ((start + i) % self._num for i in range(min(self._num, self._looks)))
        fallback: int | None = None
        for count, candidate in enumerate(chain(tries, every)):
            self._looks -= count >= _TRIES
            if candidate == batch or any(token in self._counts[candidate] for token in tokens):
                continue
            target = self._plain_place(candidate, random)
            if target is None:
                continue
            if self._counts[candidate].total() + len(self._tokens[place]) <= self._share:
                return target
            fallback = target if fallback is None else fallback
        return fallback if self._is_repeated(place, batch) else None

    def _is_repeated(self, place: int, batch: int) -> bool:
        own = Counter(self._tokens[place])
        return any(self._counts[batch][token] > count for token, count in own.items())

    def _plain_place(self, batch: int, random: np.random.Generator) -> int | None:
        """A place of the batch whose row has no rare token."""
        first = batch * self._rows
        size = min(self._rows, len(self.order) - first)
        start = int(random.integers(size))
        for step in range(size):
            place = first + (start + step) % size
            if place not in self._tokens:
                return place
        return None

    def swap(self, place: int, target: int) -> None:
        """Exchange a row with rare tokens and one without."""
        old, new = place // self._rows, target // self._rows
        self.order[[place, target]] = self.order[[target, place]]
        tokens = self._tokens.pop(place)
        self._tokens[target] = tokens
        self._counts[old].subtract(tokens)
        self._counts[old] += Counter()  # drops zeros
        self._counts[new].update(tokens)
        self._members[old].remove(place)
        self._members[new].append(target)


def _places(order: Ids, rare: RareRows) -> NDArray[np.int64]:
    """The place in the order of each occurrence; -1 for rows that are not in it."""
    places: NDArray[np.int64] = np.full(max(rare.num_rows, int(order.max(initial=0)) + 1), -1)
    places[order] = np.arange(len(order))
    return places[rare.rows]
