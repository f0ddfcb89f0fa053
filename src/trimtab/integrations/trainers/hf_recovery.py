"""A Hugging Face Trainer in `recover`: its data and its counters are rolled back with the run.

    EpochBatches      the batches of its epochs, by way of the guard
    TrainerCounters   what it counts

A Trainer counts the steps of an epoch before it begins. Repeated steps count too, so the epoch
would end that many steps early. Where the Trainer runs an epoch by `_run_epoch`, its data ends it
instead. Elsewhere the log says by how much it is short.
"""

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.trainer_callback import ExportableState

from trimtab.integrations.trainers.adapter import DataMark, TrainerAdapter, caller_variables
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
        self._num_repeated = 0
        """Batches that were repeated in this epoch."""

    def run_epoch(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Replace `_run_epoch`: let the data end the epoch."""
        self._size, self._left, self._num_repeated = None, None, 0
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
        """Note that this many steps are repeated."""
        if self._size is None:
            log.warning(
                "trimtab: the Trainer counts an epoch in steps, so this one ends %d steps early; "
                "with max_steps the next epoch makes up for it",
                num_steps,
            )
        else:
            self._num_repeated += num_steps * self._trainer.args.gradient_accumulation_steps

    def correct_epoch(self, state: Any) -> None:
        """Subtract repeated steps from `state.epoch`, which counts them."""
        if self._num_repeated and self._size:
            done = round(state.epoch * self._size) - self._num_repeated
            whole, rest = divmod(done, int(self._size))
            state.epoch = whole + rest / self._size

    def _dropping(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield what is left of an iterator, without the batches that were skipped before."""
        while self._to_drop:
            if next(iterator, None) is None:
                return
            self._to_drop -= 1
        yield from iterator


class _EpochSize(int):
    """The number of batches of an epoch.

    The Trainer updates where its count of batches equals it, so that a short last step is applied.
    Repeated batches are in that count: this number equals it at the end of a short step and nowhere
    else.
    """

    num_trained = 0
    """Batches that the Trainer has counted in this epoch."""
    has_ended = False
    """Whether a short step was handed out: it is the last one."""

    def add(self, num_batches: int, *, is_short: bool) -> None:
        """Count the batches of a step that is handed out."""
        self.num_trained += num_batches
        self.has_ended = is_short

    def __eq__(self, count: object) -> bool:
        return self.has_ended and self.num_trained == count

    __hash__ = int.__hash__


_STATE = (
    *("global_step", "epoch", "total_flos", "num_input_tokens_seen"),
    *("best_metric", "best_global_step", "best_model_checkpoint"),
)
"""Of `trainer.state`. Its log history stays: it has the rows of all attempts."""

_TRAINER = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos", "_total_train_tokens")
"""Of the Trainer; the last one is TRL's."""


class TrainerCounters:
    """The position of a Trainer, with the interface of a scheduler or an EMA."""

    def __init__(self, trainer: Any, on_return: Callable[[int], None]) -> None:
        """`on_return` is called with the number of steps that are repeated."""
        self._trainer = trainer
        self._on_return = on_return

    def state_dict(self) -> dict[str, Any]:
        """Return counters, the loss since the last log line, and what callbacks count."""
        trainer = self._trainer
        loss = _running_loss(trainer)
        return {
            "state": {n: getattr(trainer.state, n) for n in _STATE if hasattr(trainer.state, n)},
            "trainer": {n: getattr(trainer, n) for n in _TRAINER if hasattr(trainer, n)},
            "metrics": _metrics(trainer),
            "running_loss": None if loss is None else loss.detach().clone(),
            "callbacks": [callback.state().get("attributes", {}) for callback in self._callbacks()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        trainer = self._trainer
        lost = trainer.state.global_step - state["state"]["global_step"]
        for owner, values in ((trainer.state, state["state"]), (trainer, state["trainer"])):
            for name, value in values.items():
                setattr(owner, name, value)
        _restore_metrics(trainer, state["metrics"])
        loss = _running_loss(trainer)
        if loss is not None and state["running_loss"] is not None:
            loss.copy_(state["running_loss"])
        for callback, attributes in zip(self._callbacks(), state["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)
        self._on_return(lost)

    def _callbacks(self) -> list[Any]:
        """Return the callbacks that export what they count, such as EarlyStoppingCallback."""
        callbacks = self._trainer.callback_handler.callbacks
        return [callback for callback in callbacks if isinstance(callback, ExportableState)]


@contextmanager
def traceless_metrics(trainer: Any) -> Iterator[None]:
    """Leave TRL's own metrics as they are: a probe is no training step."""
    metrics, tokens = _metrics(trainer), getattr(trainer, "_total_train_tokens", None)
    try:
        yield
    finally:
        _restore_metrics(trainer, metrics)
        if tokens is not None:
            trainer._total_train_tokens = tokens


def _metrics(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return TRL's metrics since the last log line, by mode; empty for other trainers."""
    found = getattr(trainer, "_metrics", None)
    if not isinstance(found, dict):
        return {}
    return {mode: copy.deepcopy(dict(values)) for mode, values in found.items()}


def _restore_metrics(trainer: Any, metrics: dict[str, dict[str, Any]]) -> None:
    for mode, values in metrics.items():
        trainer._metrics[mode].clear()
        trainer._metrics[mode].update(values)


def _running_loss(trainer: Any) -> torch.Tensor | None:
    """Return the sum of losses since the last log line, in older versions a local variable."""
    found = getattr(trainer, "_tr_loss", None)
    if found is None:
        loops = (each for each in caller_variables() if each.get("self") is trainer)
        found = next((each["tr_loss"] for each in loops if "tr_loss" in each), None)
    return found if isinstance(found, torch.Tensor) else None
