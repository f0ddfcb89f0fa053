"""StepLoop: a loader step by step, each batch looked at before it leaves the host."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from trimtab.core import signals
from trimtab.core.block import NO_POSITION
from trimtab.core.errors import ConfigError
from trimtab.live.measure.batch_facts import BatchFacts

_END = object()


@dataclass(slots=True, kw_only=True)
class Step:
    """One step of the loop: iterate over it for its micro-batches."""

    number: int
    data_position: int
    """The index of its first batch, the same on all ranks."""
    pull: Callable[[], Any]
    size: int
    batches: list[Any] = field(default_factory=list)
    data_seconds: float = 0.0

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches
        while len(self.batches) < self.size and self.load():
            yield self.batches[-1]

    def load(self) -> bool:
        """Fetch the next micro-batch; whether there was one."""
        started = time.perf_counter()
        batch = self.pull()
        self.data_seconds += time.perf_counter() - started
        if batch is _END:
            return False
        self.batches.append(batch)
        return True


class StepLoop:
    """A loader in steps of `accumulate` batches, with the facts of the present step."""

    def __init__(self, loader: Iterable[Any], accumulate: int, data_position: int = 0) -> None:
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        self._loader = loader
        self._accumulate = accumulate
        self._facts = BatchFacts()
        self._step: Step | None = None
        self._start = self._position = data_position
        self._iterator: Iterator[Any] | None = None
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
        if not type(self._iterator).__module__.startswith("torchdata."):
            return None
        count = getattr(self._iterator, "_num_yielded", None)
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
        """Batches of the present step so far."""
        return 0 if self._step is None else len(self._step.batches)

    def run(self, next_number: Callable[[], int]) -> Iterator[Step]:
        """The steps, until the data ends."""
        iterator = self._iterator = iter(self._loader)
        while True:
            step = Step(
                number=next_number(),
                data_position=self._position,
                pull=lambda: next(iterator, _END),
                size=self._accumulate,
            )
            if not step.load():
                self.is_exhausted = True
                return
            self._step = step
            yield step
            self._position += len(step.batches)

    def facts(self) -> dict[str, float]:
        """What the batches of the present step look like."""
        if self._step is None:
            return {}
        found = self._facts.measure(self._step.batches)
        return {**found, signals.DATA_SECONDS: self._step.data_seconds}
