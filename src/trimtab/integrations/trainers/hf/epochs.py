"""EpochBatches: the batches of a Trainer's epochs, by way of the guard.

A Trainer counts the steps of an epoch before it begins. Steps that are done again count too, so the
epoch would end that many steps early. Where the Trainer runs an epoch by `_run_epoch`, its data
ends it instead. Elsewhere the log says by how much it is short.
"""

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from trimtab.integrations.trainers.adapter import TrainerAdapter
from trimtab.integrations.trainers.guard_file import DataMark
from trimtab.live.shield import log


class EpochBatches:
    """Hands out batches step by step; a new iterator is a new epoch."""

    def __init__(
        self, trainer: Any, adapter: TrainerAdapter, mark: DataMark, resumed: str | None = None
    ) -> None:
        """Begin at a mark; `resumed` is the checkpoint that it is from."""
        self._trainer = trainer
        self._adapter = adapter
        self._position: int | None = mark.position
        """The position of the first batch of the run, until it is handed out."""
        self._to_drop = mark.skipped
        """Batches that the Trainer does not know of, so it would read them again."""
        self._resumed = resumed if mark.skipped else None
        self._iterator: Any = None
        self._batches: Iterator[Any] = iter(())
        self._size: _EpochSize | None = None
        """Batches of an epoch, if its data ends it."""
        self._left: int | None = None
        """Those of this epoch that a resume has left."""
        self._num_done_again = 0
        """Batches that were done again in this epoch."""

    def run_epoch(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Replace `_run_epoch`: let the data end the epoch."""
        self._size, self._left, self._num_done_again = None, None, 0
        size, guard = options.get("steps_in_epoch"), self._adapter.guard
        if isinstance(size, int) and guard is not None and guard.recovery is not None:
            is_resumed = options["epoch"] == options["epochs_trained"]
            done = options["steps_trained_in_current_epoch"] if is_resumed else 0
            self._size, self._left = _EpochSize(size), size - done
            self._size.num_trained = done
            options["steps_in_epoch"] = self._size
            options["num_update_steps_per_epoch"] = sys.maxsize
            if size % self._trainer.args.gradient_accumulation_steps and self._position is None:
                # The Trainer recognises a full step by its count of batches, which would be wrong
                # after the short step between the epochs.
                guard.recovery.snapshots.clear()
        return original(*arguments, **options)

    def samples(self, original: Any, iterator: Any, size: int, *rest: Any, **options: Any) -> Any:
        """Replace `get_batch_samples`: batches of the next step, which may be an earlier one."""
        if iterator is not self._iterator:
            self._iterator = iterator
            self._batches = itertools.islice(self._dropping(iterator), self._left)
        found: list[Any] = []
        if self._size is None or not self._size.has_ended:
            position, self._position = self._position, None
            loader = self._trainer.callback_handler.train_dataloader
            found = self._adapter.next_batches(loader, self._batches, size, position=position)
        if self._resumed is not None:
            # The Trainer does this where it knows that it begins within an epoch.
            self._trainer._load_rng_state(self._resumed)
            self._resumed = None
        if self._size is not None:
            self._size.add(len(found), is_short=0 < len(found) < size)
            self._trainer.control.should_epoch_stop |= not found
        return original(iter(found), size, *rest, **options)

    def went_back(self, num_steps: int) -> None:
        """This many steps are done again."""
        if self._size is None:
            log.warning(
                "trimtab: the Trainer counts an epoch in steps, so this one ends %d steps early; "
                "with max_steps the next epoch makes up for it",
                num_steps,
            )
        else:
            self._num_done_again += num_steps * self._trainer.args.gradient_accumulation_steps

    def correct_epoch(self, state: Any) -> None:
        """`state.epoch` counts steps that were done again; take them out."""
        if self._num_done_again and self._size:
            done = round(state.epoch * self._size) - self._num_done_again
            whole, rest = divmod(done, int(self._size))
            state.epoch = whole + rest / self._size

    def _dropping(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """What is left of an iterator."""
        while self._to_drop:
            if next(iterator, None) is None:
                return
            self._to_drop -= 1
        yield from iterator


class _EpochSize(int):
    """The number of batches of an epoch.

    The Trainer updates where its count of batches equals it, so that a short last step is applied.
    Batches that are done again are in that count: this number equals it at the end of a short step
    and nowhere else.
    """

    num_trained = 0
    """Batches that the Trainer has counted in this epoch."""
    has_ended = False
    """Whether a short step was handed out: it is the last one."""

    def add(self, num_batches: int, *, is_short: bool) -> None:
        """Batches of a step are handed out."""
        self.num_trained += num_batches
        self.has_ended = is_short

    def __eq__(self, count: object) -> bool:
        return self.has_ended and self.num_trained == count

    __hash__ = int.__hash__
