"""DataCursor: where a run is in its data, and how a relaunched run gets there again.

    the loader has load_state_dict     its state (StatefulDataLoader)
    the loader has seek(index)         it begins its next pass at that batch
    any other                          batches are drawn and dropped, and the log says how many

Random numbers that worker processes draw come back only where batches are drawn again.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trimtab.core.log import log
from trimtab.state.rng import RandomState, get_random_state, set_random_state

MAX_MARKS = 8
"""Loader states that are kept. A run that went back a few checkpoints must find an older one."""

LOG_SECONDS = 30.0
"""Between two lines about batches that are being dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place in the data that can be returned to."""

    position: int
    """Of the next batch, over all epochs."""
    epoch: int
    """Passes over a loader that were complete before it."""
    start: int
    """Position at which the present pass began."""
    random_at_start: RandomState
    """The generators before the present pass: making an iterator draws from them."""
    loader: Any = None
    """The state of the loader at `position`, if it has one."""

    def without_loader(self) -> "Mark":
        """The start of the same pass: what a different number of ranks can return to."""
        return replace(self, position=self.start, loader=None)


class LoaderPass:
    """One pass over a loader, counted."""

    def __init__(self, cursor: "DataCursor", loader: Iterable[Any]) -> None:
        self._cursor = cursor
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return self._cursor.start(self._loader)


class DataCursor:
    """Counts the batches of all epochs and marks places in them."""

    def __init__(self) -> None:
        self.position = 0
        """Position of the next batch."""
        self.epoch = 0
        self._marks: list[Mark] = []
        self._loader: Any = None
        self._target: tuple[Mark, int, RandomState | None] | None = None
        """Where to return to when the next pass begins."""

    def start(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Begin a pass over a loader; after a resume, go on with what is left of it.

        The iterator of the loader is made here and not with the first batch: that draws random
        numbers, and a snapshot that is taken between the two must come after it.
        """
        target, self._target = self._target, None
        if target is not None:
            return self._count(self._return(loader, *target))
        self._begin(loader)
        return self._count(iter(loader))

    def _count(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            self.position += 1
            yield batch
        self.epoch += 1
        self._loader = None

    def mark(self, position: int | None = None) -> tuple[Mark | None, int]:
        """The newest place at or before a position (the present one), and the position.

        A run that serves batches again after a rollback is not where its loader is.
        """
        if self._loader is not None and _has_state(self._loader):
            now = Mark(
                position=self.position,
                epoch=self.epoch,
                start=self._marks[-1].start,
                random_at_start=self._marks[-1].random_at_start,
                loader=self._loader.state_dict(),
            )
            self._marks = [*self._marks, now][-MAX_MARKS:]
        wanted = self.position if position is None else position
        older = [mark for mark in self._marks if mark.position <= wanted]
        return (older[-1] if older else None), wanted

    def return_to(self, mark: Mark | None, position: int, random: RandomState | None) -> None:
        """Begin the next pass at a position; `random` is the state of the generators there."""
        self.position = position
        self.epoch = 0 if mark is None else mark.epoch
        self._marks = []
        self._target = None if mark is None else (mark, position, random)

    def _begin(self, loader: Any) -> None:
        self._loader = loader
        mark = Mark(
            position=self.position,
            epoch=self.epoch,
            start=self.position,
            random_at_start=get_random_state(),
        )
        self._marks = [*self._marks, mark][-MAX_MARKS:]

    def _return(
        self, loader: Any, mark: Mark, position: int, random: RandomState | None
    ) -> Iterator[Any]:
        self._loader = loader
        drop = position - mark.start
        if mark.loader is not None and _has_state(loader):
            loader.load_state_dict(mark.loader)
            drop = position - mark.position
            if getattr(loader, "num_workers", 0) > 0:
                log.warning(
                    "trimtab: the loader's state lacks the random numbers of its workers: a "
                    "dataset that draws some gives other batches"
                )
        elif hasattr(loader, "seek"):
            loader.seek(drop)
            drop = 0
        self._marks = [mark]
        set_random_state(mark.random_at_start)
        iterator: Iterator[Any] = iter(loader)
        _drop(iterator, drop)
        if random is not None:
            set_random_state(random)
        return iterator


def _has_state(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _drop(iterator: Iterator[Any], count: int) -> None:
    """Draw batches and drop them, not in silence: it may take hours."""
    if not count:
        return
    log.warning(
        "trimtab: the loader drops %d batches to return to its place; StatefulDataLoader or "
        "seek(index) avoids this",
        count,
    )
    began = last = time.monotonic()
    for dropped in range(1, count + 1):
        if next(iterator, iterator) is iterator:
            log.warning("trimtab: the loader ended after %d of %d batches", dropped - 1, count)
            return
        now = time.monotonic()
        if now - last >= LOG_SECONDS:
            last = now
            log.warning("trimtab: %d of %d batches dropped", dropped, count)
    log.info("trimtab: %d batches dropped in %.0f s", count, time.monotonic() - began)
