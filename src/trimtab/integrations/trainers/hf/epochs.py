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
from trimtab.live.shield import log


class EpochBatches:
    """Hands out batches step by step; a new iterator is a new epoch."""

    def __init__(self, trainer: Any, adapter: TrainerAdapter, position: int, to_drop: int) -> None:
        """Begin with the batch at `position`, after this many more of the Trainer's batches."""
        self._trainer = trainer
        self._adapter = adapter
        self.position = position
        """The position of the first batch of the run."""
        self._to_drop = to_drop
        self._iterator: Any = None
        self._batches: Iterator[Any] = iter(())
        self._has_begun = False
        self._size: int | None = None
        """Batches of an epoch, if its data ends it."""
        self._left: int | None = None
        """Those of this epoch that a resume has left."""
        self._num_done_again = 0
        """Batches that were done again in this epoch."""

    def run_epoch(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Replace `_run_epoch`: let the data end the epoch."""
        self._size, self._left, self._num_done_again = None, None, 0
        accumulate = self._trainer.args.gradient_accumulation_steps
        size = options.get("steps_in_epoch")
        # A shorter step at its end is recognised by the count of batches, which is off after a
        # rollback; then the Trainer's own count stays.
        if isinstance(size, int) and size % accumulate == 0:
            is_resumed = options["epoch"] == options["epochs_trained"]
            done = options["steps_trained_in_current_epoch"] if is_resumed else 0
            self._size, self._left = size, size - done
            options["num_update_steps_per_epoch"] = sys.maxsize
        return original(*arguments, **options)

    def samples(self, original: Any, iterator: Any, size: int, *rest: Any, **options: Any) -> Any:
        """Replace `get_batch_samples`: batches of the next step, which may be an earlier one."""
        if iterator is not self._iterator:
            self._iterator = iterator
            self._batches = itertools.islice(self._dropping(iterator), self._left)
        position = None if self._has_begun else self.position
        self._has_begun = True
        loader = self._trainer.callback_handler.train_dataloader
        found = self._adapter.next_batches(loader, self._batches, size, position=position)
        if not found and self._size is not None:
            self._trainer.control.should_epoch_stop = True
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
            whole, rest = divmod(done, self._size)
            state.epoch = whole + rest / self._size

    def _dropping(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """What is left of an iterator: a resume skips as if no batch had been left out before."""
        while self._to_drop:
            if next(iterator, None) is None:
                return
            self._to_drop -= 1
        yield from iterator
