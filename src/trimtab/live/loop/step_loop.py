"""StepLoop: a loader step by step, each batch looked at before it leaves the host."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from trimtab.core import signals
from trimtab.core.block import NO_POSITION
from trimtab.core.errors import ConfigError
from trimtab.live.measure.batch_facts import BatchFacts


class BatchSource(Protocol):
    """Where batches come from: a loader, or a tape that can serve them again."""

    position: int
    """Position of the next batch."""

    def next_batch(self, *, continues_step: bool = False) -> tuple[int, Any] | None:
        """Position and batch that come next; None at the end of the data, or of the step."""
        ...


class LoaderSource:
    """The batches of a loader, counted."""

    def __init__(self, loader: Iterable[Any], position: int = 0) -> None:
        self._loader = iter(loader)
        self.position = position

    def next_batch(self, *, continues_step: bool = False) -> tuple[int, Any] | None:
        """Position and batch that come next; None at the end of the data."""
        for batch in self._loader:
            self.position += 1
            return self.position - 1, batch
        return None


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the loop: iterate over it for its micro-batches."""

    number: int
    source: BatchSource
    size: int
    data_position: int = NO_POSITION
    """The index of its first batch, the same on all ranks."""
    batches: list[Any] = field(default_factory=list)
    data_seconds: float = 0.0

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
        while len(self.batches) < self.size and self.load():
            yield self.batches[-1]

    def load(self) -> bool:
        """Fetch the next micro-batch; whether there was one."""
        started = time.perf_counter()
        found = self.source.next_batch(continues_step=bool(self.batches))
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

    def __init__(self, source: BatchSource, accumulate: int) -> None:
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        self._source = source
        self.accumulate = accumulate
        self.batch_facts = BatchFacts()
        self._step: Step | None = None

    @property
    def data_position(self) -> int:
        """Where in the data the present step began."""
        return NO_POSITION if self._step is None else self._step.data_position

    def next_step(self, number: int) -> Step | None:
        """The next step, with its first batch; None at the end of the data."""
        step = Step(number=number, source=self._source, size=self.accumulate)
        if not step.load():
            return None
        self._step = step
        return step

    def facts(self) -> dict[str, float]:
        """What the batches of the present step look like."""
        if self._step is None:
            return {}
        found = self.batch_facts.measure(self._step.batches)
        return {**found, signals.DATA_SECONDS: self._step.data_seconds}
