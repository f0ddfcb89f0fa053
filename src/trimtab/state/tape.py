"""BatchTape: the batches since the oldest snapshot, kept to be served again.

The state of a loader would not do: random numbers drawn in worker processes cannot be brought back,
and a restored loader starts its workers and its prefetching again. A tape works for any iterable.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trimtab.core.errors import RestoreError, RunStopped
from trimtab.journal.exit_request import RunExit
from trimtab.state.batches import clone, copy_containers, tensors_in
from trimtab.state.rng import RandomState, equal, get_random_state, set_random_state
from trimtab.state.source import source_of

MAX_PASSED = 1000
"""Batches of a quarantined source in a row before the run ends: an endless loader would otherwise
be read without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapedBatch:
    """One batch as the loader gave it."""

    position: int
    """Its index in the data, over all epochs."""
    batch: Any
    random_after: RandomState | None
    """The generators after fetching it, if fetching drew from them in this process."""
    versions: tuple[int, ...]
    """How often each of its tensors had been written to."""
    begins: bool
    """Whether it is the first batch of a loader."""
    source: str | None = None
    """The data source that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """A place to which the tape returns as if it had never been rewound."""

    position: int
    was_rewound: bool
    num_passed: int
    skipped: frozenset[int]


class BatchTape:
    """Hands out the batches of a loader, and hands them out again after `rewind`."""

    def __init__(self, position: int = 0) -> None:
        self._taped: deque[TapedBatch] = deque()
        self.iterator: Iterator[Any] = iter(())
        self._from_workers = False
        self._keeps = True
        self._start: tuple[RandomState, RandomState] | None = None
        """The generators before and after making the iterator, until its first batch is here."""
        self._was_rewound = False
        """Whether the tape was rewound since then."""
        self._fetched = position
        """Position of the next batch that the loader has not given yet."""
        self.position = position
        """Position of the next batch to be handed out."""
        self._skipped: set[int] = set()
        self._quarantined: set[str] = set()
        """Data sources that are passed over."""
        self._num_passed = 0
        """Batches of them in a row."""
        self.changed: int | None = None
        """Position of the first batch that was changed in place after it was handed out."""

    def start(self, loader: Iterable[Any], batches: Iterable[Any] | None = None) -> None:
        """Go on with a loader, such as the next epoch's; what was taped stays.

        `batches` are what it gives, where that is not the loader itself: after a resume, the rest.
        """
        before = get_random_state()
        self.iterator = iter(loader if batches is None else batches)
        self._start, self._was_rewound = (before, get_random_state()), False
        self._from_workers = getattr(loader, "num_workers", 0) > 0

    def jump(self, position: int) -> None:
        """The next batch of the loader has this position; what was taped is dropped."""
        self._taped.clear()
        self._fetched = self.position = position

    def keep_nothing(self) -> None:
        """From now on only hand batches out: there are no snapshots to return to."""
        self._keeps = False
        self.forget_before(self.position)  # steps that are being done again still need the rest

    def skip(self, positions: Iterable[int]) -> None:
        """Pass over these positions, now and later."""
        self._skipped |= set(positions)

    def skip_only(self, positions: Iterable[int]) -> None:
        """Pass over these positions and no others."""
        self._skipped = set(positions)

    def quarantine(self, source: str) -> None:
        """Pass over all batches of a data source from now on."""
        self._quarantined.add(source)

    def source_at(self, position: int) -> str | None:
        """The data source of the batch at a position, as far as the tape holds it."""
        entry = self._entry_at(position)
        return None if entry is None else entry.source

    def skips(self, position: int) -> bool:
        """Whether a position is passed over."""
        return position in self._skipped

    def next_batch(self, *, continues_step: bool = False) -> tuple[int, Any] | None:
        """Position and batch that come next; None at the end of the loader.

        A step ends with its loader: the first batch of the next one never continues it, also when
        both are served from the tape.
        """
        while True:
            if continues_step and self._is_between_loaders:
                return None
            entry = self._replay() or self._fetch()
            if entry is None:
                return None
            self.position = entry.position + 1
            if entry.source is not None and entry.source in self._quarantined:
                self._pass_over(entry.source)
                continue
            self._num_passed = 0
            if entry.position not in self._skipped:
                # The containers are copied: users move tensors to the device in place. Where
                # tensors are written to as well, they are copied too.
                change = copy_containers if self.changed is None else clone
                return entry.position, change(entry.batch)

    def rewind(self, position: int, skip: Iterable[int] = ()) -> None:
        """Serve again from `position`; positions in `skip` are passed over, now and later."""
        first = self._taped[0].position if self._taped else self._fetched
        if not first <= position <= self._fetched:
            raise RestoreError(
                f"the tape holds the batches from {first} to {self._fetched - 1}, not {position}"
            )
        self.position = position
        self._was_rewound = True
        self.skip(skip)

    def bookmark(self) -> Bookmark:
        """Where the tape is now."""
        return Bookmark(
            position=self.position,
            was_rewound=self._was_rewound,
            num_passed=self._num_passed,
            skipped=frozenset(self._skipped),
        )

    def return_to(self, bookmark: Bookmark) -> None:
        """Go on from a bookmark."""
        self.position, self._was_rewound = bookmark.position, bookmark.was_rewound
        self._num_passed = bookmark.num_passed
        self._skipped = set(bookmark.skipped)

    def batch_at(self, position: int) -> Any:
        """The batch at a position, as the loader gave it; None if the tape does not hold it."""
        entry = self._entry_at(position)
        return None if entry is None else clone(entry.batch)

    def forget_before(self, position: int) -> None:
        """Drop the batches that no snapshot needs any more."""
        while self._taped and self._taped[0].position < position:
            self._taped.popleft()
        self._skipped = {place for place in self._skipped if place >= position}

    @property
    def is_replaying(self) -> bool:
        """Whether batches are served again: the loader is ahead of the run."""
        return self.position < self._fetched

    @property
    def num_bytes(self) -> int:
        """Memory of the tensors on the tape."""
        return sum(t.nbytes for entry in self._taped for t in tensors_in(entry.batch))

    def __len__(self) -> int:
        return len(self._taped)

    def _entry_at(self, position: int) -> TapedBatch | None:
        first = self._taped[0].position if self._taped else self._fetched
        return self._taped[position - first] if first <= position < self._fetched else None

    def _pass_over(self, source: str) -> None:
        self._num_passed += 1
        if self._num_passed > MAX_PASSED:
            raise RunStopped(
                f"the last {MAX_PASSED} batches are all of the source {source!r}, which is "
                "quarantined: there is nothing else to train on",
                RunExit.STOP,
            )

    @property
    def _is_between_loaders(self) -> bool:
        if self.position < self._fetched:
            return self._taped[self.position - self._taped[0].position].begins
        return self._start is not None

    def _replay(self) -> TapedBatch | None:
        if self.position >= self._fetched:
            return None
        entry = self._taped[self.position - self._taped[0].position]
        if entry.random_after is not None:
            set_random_state(entry.random_after)
        if self.changed is None and _versions(entry.batch) != entry.versions:
            self.changed = entry.position
        return entry

    def _fetch(self) -> TapedBatch | None:
        start, self._start = self._start, None
        if start is not None and self._was_rewound:
            # The iterator was made before the rewind; in the run that never left, now.
            set_random_state(start[1])
        before = get_random_state() if start is None else start[0]
        try:
            batch = next(self.iterator)
        except StopIteration:
            return None
        after = get_random_state()
        # Tensors from workers are shared memory: each would hold a file descriptor open.
        kept = clone(batch) if self._from_workers else copy_containers(batch)
        entry = TapedBatch(
            position=self._fetched,
            batch=kept,
            random_after=None if equal(before, after) else after,
            versions=_versions(kept),
            begins=start is not None,
            source=source_of(kept),
        )
        if self._keeps:
            self._taped.append(entry)
        else:
            self._taped.clear()
        self._fetched += 1
        return entry


def _versions(batch: Any) -> tuple[int, ...]:
    return tuple(t._version for t in tensors_in(batch) if not t.is_inference())
