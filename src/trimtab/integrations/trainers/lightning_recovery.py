"""The Lightning Trainer in `recover`: its data and its counters are rolled back with the run.

    fit loop -> next(GuardedFetcher) -> the guard: boundary, tape -> Lightning's fetcher -> loader

The Trainer asks for a batch after everything that belongs to the step before: schedulers, loggers,
validation, checkpoints. The first batch of a step is the boundary where the run may be rolled back.
An epoch that was left by a rollback is entered again: its batches come from the tape, each with
what it said about the end of its epoch, and no new iterator is made until the tape is used up.

`LoopCounters` is the position of the Trainer: every counter of batches, steps, epochs and
schedulers; the pass over the data and the place in it; what other callbacks have counted, and
averages of the weights that they keep. A `ModelCheckpoint` knows which files exist, and a `Timer`
how long the run has taken: these stay. Only the last step that was saved is restored, or the next
save of that step would be left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.loops.fetchers import _DataFetcher
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from torch import nn

from trimtab.integrations.trainers.adapter import hidden_gradients
from trimtab.live.guard import Guard
from trimtab.live.loop.step_iterator import StepIterator
from trimtab.live.shield import log

UNKNOWN = -1

SAVED = "_last_global_step_saved"
"""Of a `ModelCheckpoint`: it saves a step once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A batch as Lightning's fetcher gave it."""

    item: Any
    loader: int
    """The pass over the data that it is from."""
    index: int
    """Its place in this pass."""
    remaining: int
    """Batches after it in this pass; UNKNOWN if there are more of them."""


class Pass:
    """One pass over the data; making its iterator may draw random numbers, so the tape does it."""

    def __init__(self, fetcher: _DataFetcher, number: int, *, is_begun: bool) -> None:
        self._fetcher = fetcher
        self._number = number
        self._is_begun = is_begun
        # Lightning's own fetcher does not say so; workers hand over memory that must be copied.
        loaders = fetcher.combined_loader.flattened
        self.num_workers = max((getattr(one, "num_workers", 0) for one in loaders), default=0)

    def __iter__(self) -> Iterator[Fetched]:
        if not self._is_begun:
            iter(self._fetcher)
        return self._fetched()

    def _fetched(self) -> Iterator[Fetched]:
        fetcher = self._fetcher
        for item in _rest(fetcher):
            length = fetcher.length
            more = UNKNOWN if length is None else length - fetcher.fetched
            yield Fetched(
                item=item,
                loader=self._number,
                index=fetcher.fetched - 1 - len(getattr(fetcher, "batches", ())),
                remaining=0 if fetcher.done else more,
            )


class GuardedFetcher(_DataFetcher):  # type: ignore[misc]
    """Stands in for the fetcher of the fit loop."""

    def __init__(self, trainer: Trainer, guard: Guard) -> None:
        super().__init__()
        self._trainer = trainer
        self._guard = guard
        self._newest = 0
        """The number of the last pass that was begun."""
        self.current = 0
        """The pass that the last batch was from."""
        self.index = -1
        """The place of that batch in its pass."""
        self._steps: StepIterator
        self._batches: Iterator[Fetched] | None = None
        """What is left of the step; None before the first one of a pass."""
        self.install()
        self.current = self._newest

    def install(self) -> None:
        """Replace a fetcher that the fit loop has made and begun."""
        loop = self._trainer.fit_loop
        if loop._data_fetcher is not self:
            self._inner = loop._data_fetcher
            self._combined_loader = self._inner.combined_loader
            self._begin(is_begun=True)
            loop._data_fetcher = self  # last: an error leaves the Trainer its own

    def remove(self) -> None:
        """Restore the fetcher that was replaced."""
        if self._trainer.fit_loop._data_fetcher is self:
            self._trainer.fit_loop._data_fetcher = self._inner

    def __iter__(self) -> "GuardedFetcher":
        if self.current == self._newest:  # else the tape has a later pass already
            self._begin(is_begun=False)
        self.index = -1
        return self

    def __next__(self) -> Any:
        self._inner._start_profiler = self._start_profiler
        self._inner._stop_profiler = self._stop_profiler
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        size = self._trainer.accumulate_grad_batches
        num_done = progress.current.ready % size  # not 0 after a resume in the middle of a step
        if self._batches is None or num_done == 0:
            self._batches = self._next_step(size - num_done)
        fetched = next(self._batches, None)
        if fetched is None:
            self.done = True
            raise StopIteration
        self._note(fetched)
        return fetched.item

    def reset(self) -> None:
        """Lightning's own fetcher counts."""

    def teardown(self) -> None:
        """End Lightning's own fetcher."""
        self._inner.teardown()

    @property
    def fetched(self) -> int:
        """Return the batches that were fetched in this pass; a resume adds those of before."""
        return int(self._inner.fetched)

    @fetched.setter
    def fetched(self, value: int) -> None:
        if hasattr(self, "_inner"):
            self.index += value - self._inner.fetched
            self._inner.fetched = value

    def _begin(self, *, is_begun: bool) -> None:
        self._newest += 1
        self._batches = None
        one = Pass(self._inner, self._newest, is_begun=is_begun)
        loop = self._trainer.fit_loop.epoch_loop
        is_first = self._newest == 1
        self._steps = self._guard.step_iterator(
            one,
            self._trainer.accumulate_grad_batches,
            batches=one,
            data_position=loop.batch_progress.total.ready if is_first else None,
        )

    def _next_step(self, size: int) -> Iterator[Fetched]:
        """Return the batches of the next step; the run may be rolled back at this boundary."""
        model = self._trainer.strategy.model
        if self._guard.recovery is None or model is None:
            return iter(self._steps.next_step(size) or ())
        with hidden_gradients(model.parameters()):
            return iter(self._steps.next_step(size) or ())

    def _note(self, fetched: Fetched) -> None:
        """Count what was skipped before this batch, and whether anything comes after it."""
        expected = self.index + 1 if fetched.loader == self.current else 0
        self._pass_over(fetched.index - expected)
        self.current, self.index = fetched.loader, fetched.index
        self.done = fetched.remaining == 0
        recovery = self._guard.recovery
        if fetched.remaining > 0 and recovery is not None:
            tape = recovery.tape
            after = range(tape.position, tape.position + fetched.remaining)
            self.done = all(map(tape.skips, after))
            if self.done:
                self._pass_over(fetched.remaining)

    def _pass_over(self, num_batches: int) -> None:
        """Count skipped batches: Lightning finds the end of an epoch, and when to evaluate, by the
        number of its batches."""
        if num_batches <= 0:
            return
        if num_batches % self._trainer.accumulate_grad_batches == 0:
            progress = self._trainer.fit_loop.epoch_loop.batch_progress
            for count in (progress.total, progress.current):
                for name in ("ready", "started", "processed", "completed"):
                    setattr(count, name, getattr(count, name) + num_batches)
        else:  # counting them would move the limits of steps
            log.warning(
                "trimtab: %d skipped batches are no whole steps, so batch numbers of this epoch "
                "are too low, and an evaluation at its end may not run",
                num_batches,
            )


def _rest(fetcher: _DataFetcher) -> Iterator[Any]:
    """Yield what a fetcher that was begun still gives: `iter` would begin it again."""
    while True:
        try:
            yield next(fetcher)
        except StopIteration:
            return


class LoopCounters:
    """The position of the Trainer, as part of a snapshot."""

    def __init__(self, trainer: Trainer, own: Callback) -> None:
        self._trainer = trainer
        self._own = own
        self.fetcher: GuardedFetcher | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the Trainer."""
        fetcher = self.fetcher
        return {
            "loops": {name: one.state_dict() for name, one in self._progress()},
            "stepped": self._trainer.fit_loop.epoch_loop._batches_that_stepped,
            "data": None if fetcher is None else (fetcher.current, fetcher.index),
            "callbacks": {name: one.state_dict() for name, one in self._callbacks()},
            "saved": {name: getattr(one, SAVED, 0) for name, one in self._checkpoints()},
            "averages": {name: one.state_dict() for name, one in self._averages()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position."""
        for name, progress in self._progress():
            progress.load_state_dict(state["loops"][name])
        self._trainer.fit_loop.epoch_loop._batches_that_stepped = state["stepped"]
        if self.fetcher is not None and state["data"] is not None:
            self.fetcher.current, self.fetcher.index = state["data"]
        for name, average in self._averages():
            if name in state["averages"]:
                average.load_state_dict(state["averages"][name])
        for name, checkpoint in self._checkpoints():
            setattr(checkpoint, SAVED, state["saved"].get(name, 0))
        for name, callback in self._callbacks():
            try:
                callback.load_state_dict(state["callbacks"].get(name, {}))
            except Exception as error:  # a callback of the user: the run is worth more
                log.warning("trimtab: %s could not be rolled back with the run: %s", name, error)

    def _progress(self) -> Iterator[tuple[str, _BaseProgress]]:
        return _progress_of(self._trainer.fit_loop, "fit_loop")

    def _callbacks(self) -> Iterator[tuple[str, Callback]]:
        for number, callback in enumerate(self._trainer.callbacks):
            stays = callback is self._own or isinstance(callback, Checkpoint | Timer)
            if not stays and type(callback).state_dict is not Callback.state_dict:
                yield f"{number} {type(callback).__name__}", callback

    def _checkpoints(self) -> Iterator[tuple[str, Checkpoint]]:
        for number, callback in enumerate(self._trainer.callbacks):
            if isinstance(callback, Checkpoint):
                yield f"{number} {type(callback).__name__}", callback

    def _averages(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the copies of the model that callbacks keep."""
        for number, callback in enumerate(self._trainer.callbacks):
            for name, value in vars(callback).items():
                if isinstance(value, nn.Module) and value is not self._trainer.lightning_module:
                    yield f"{number} {type(callback).__name__}.{name}", value


def _progress_of(loop: _Loop, path: str) -> Iterator[tuple[str, _BaseProgress]]:
    for name, value in vars(loop).items():
        if isinstance(value, _BaseProgress):
            yield f"{path}.{name}", value
        elif isinstance(value, _Loop):
            yield from _progress_of(value, f"{path}.{name}")
