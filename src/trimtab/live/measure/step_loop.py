"""StepLoop: a loader step by step, each batch looked at before it leaves the host."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trimtab.core.block import NO_POSITION
from trimtab.core.errors import ConfigError
from trimtab.journal.batches.rows import TokenRows
from trimtab.live.measure.batch_facts import BatchFacts, fingerprint_of


class LoaderSource:
    """The batches of a loader, counted."""

    def __init__(self, loader: Iterable[Any], position: int = 0) -> None:
        self.iterator = iter(loader)
        self.position = position
        """Position of the next batch."""

    def next_batch(self) -> tuple[int, Any] | None:
        """Return position and batch that come next; None at the end of the data."""
        for batch in self.iterator:
            self.position += 1
            return self.position - 1, batch
        return None


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the loop: iterate over it for its micro-batches."""

    number: int
    """Counts the steps of the loop, whatever the number of updates in each."""
    source: LoaderSource
    size: int
    data_position: int = NO_POSITION
    """The index of its first batch, the same on all ranks."""
    batches: list[Any] = field(default_factory=list)
    data_seconds: float = 0.0
    num_measured: int = 0
    """Batches whose facts are in a record."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
        while len(self.batches) < self.size and self.load():
            yield self.batches[-1]

    def pop_unmeasured(self) -> list[Any]:
        """Return the batches whose facts are in no record yet, once."""
        fresh = self.batches[self.num_measured :]
        self.num_measured = len(self.batches)
        return fresh

    def load(self) -> bool:
        started = time.perf_counter()
        found = self.source.next_batch()
        self.data_seconds += time.perf_counter() - started
        if found is None:
            return False
        position, batch = found
        if not self.batches:
            self.data_position = position
        self.batches.append(batch)
        return True


class StepLoop:
    """Batches in steps of `accumulate`, with the facts of the present step."""

    def __init__(self, source: LoaderSource, accumulate: int, loader: Iterable[Any] = ()) -> None:
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        self.source = source
        self.accumulate = accumulate
        self.batch_facts = BatchFacts()
        self._step: Step | None = None
        self._start = source.position
        self._loader = loader
        self.is_exhausted = False

    @property
    def data_position(self) -> int:
        """Where in the data the present step began."""
        return NO_POSITION if self._step is None else self._step.data_position

    @property
    def next_position(self) -> int:
        """The index of the first batch that no step has had yet."""
        step = self._step
        return self._start if step is None else step.data_position + len(step.batches)

    @property
    def loader_position(self) -> int | None:
        """Batches that a StatefulDataLoader has yielded in this epoch; None of other loaders.

        Only its iterator continues this count after a resume.
        """
        iterator = self.source.iterator
        if not type(iterator).__module__.startswith("torchdata."):
            return None
        count = getattr(iterator, "_num_yielded", None)
        return count if isinstance(count, int) else None

    @property
    def is_at_end(self) -> bool:
        """Whether the last batch of the epoch was served, as far as that is known."""
        count = self.loader_position
        if count is None:
            count = self.next_position - self._start
        try:
            return self.is_exhausted or count == len(self._loader)  # type: ignore[arg-type]
        except Exception:  # a stream does not know its length, and says so in its own way
            return False

    @property
    def num_loaded(self) -> int:
        return 0 if self._step is None else len(self._step.batches)

    def next_step(self, number: int, size: int | None = None) -> Step | None:
        """The next step, with its first batch; None at the end of the data."""
        step = Step(number=number, source=self.source, size=size or self.accumulate)
        if not step.load():
            self.is_exhausted = True
            return None
        self._step = step
        return step

    @property
    def data_seconds(self) -> float:
        """How long the present step has waited for its batches."""
        return 0.0 if self._step is None else self._step.data_seconds

    def facts(self) -> dict[str, float]:
        """Return what the batches of the present step look like, each batch once."""
        fresh = [] if self._step is None else self._step.pop_unmeasured()
        # None in a second update on the same batch, as in a GAN: it is no repeated batch.
        return self.batch_facts.measure(fresh) if fresh else {}

    def fingerprint(self) -> float | None:
        """Return that of the present step so far; None if its batches are not on the host."""
        return None if self._step is None else fingerprint_of(self._step.batches)

    def pop_token_rows(self) -> tuple[TokenRows, ...]:
        return self.batch_facts.pop_token_rows()
