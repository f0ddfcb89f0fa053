"""LoopCounters: where the Lightning Trainer is, so that it can go back there.

    loops            every counter of batches, steps, epochs and schedulers
    data             the pass over the data, and the place in it
    callbacks        what other callbacks have counted, and averages of the weights that they keep

A `ModelCheckpoint` knows which files exist, and a `Timer` how long the run has taken: these stay.
Only the last step that was saved goes back, or the next save of that step would be left out.
"""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from torch import nn

from trimtab.integrations.trainers.lightning.data import GuardedFetcher
from trimtab.live.shield import log

SAVED = "_last_global_step_saved"
"""Of a `ModelCheckpoint`: it saves a step once."""


class LoopCounters:
    """The position of the Trainer, as part of a snapshot."""

    def __init__(self, trainer: Trainer, own: Callback) -> None:
        self._trainer = trainer
        self._own = own
        self.fetcher: GuardedFetcher | None = None

    def state_dict(self) -> dict[str, Any]:
        """Where the Trainer is."""
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
        """Go back to where it was."""
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
                log.warning("trimtab: %s could not go back with the run: %s", name, error)

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
        """Copies of the model that callbacks keep."""
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
