"""TrainerCounters: what a Trainer counts, so that it returns with the run."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from transformers.trainer_callback import ExportableState

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
        """`on_return` is called with the number of steps that are done again."""
        self._trainer = trainer
        self._on_return = on_return

    def state_dict(self) -> dict[str, Any]:
        """Counters, the loss since the last log line, and what callbacks count."""
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
        """Go back."""
        trainer = self._trainer
        lost = trainer.state.global_step - state["state"]["global_step"]
        for owner, values in ((trainer.state, state["state"]), (trainer, state["trainer"])):
            for name, value in values.items():
                setattr(owner, name, value)
        _put_metrics(trainer, state["metrics"])
        loss = _running_loss(trainer)
        if loss is not None and state["running_loss"] is not None:
            loss.copy_(state["running_loss"])
        for callback, attributes in zip(self._callbacks(), state["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)
        self._on_return(lost)

    def _callbacks(self) -> list[Any]:
        """Callbacks that say what they count, such as EarlyStoppingCallback."""
        callbacks = self._trainer.callback_handler.callbacks
        return [callback for callback in callbacks if isinstance(callback, ExportableState)]


@contextmanager
def traceless_metrics(trainer: Any) -> Iterator[None]:
    """Leave TRL's own metrics as they are: a probe is no training step."""
    metrics, tokens = _metrics(trainer), getattr(trainer, "_total_train_tokens", None)
    try:
        yield
    finally:
        _put_metrics(trainer, metrics)
        if tokens is not None:
            trainer._total_train_tokens = tokens


def _metrics(trainer: Any) -> dict[str, dict[str, Any]]:
    """TRL's metrics since the last log line, by mode; empty for other trainers."""
    found = getattr(trainer, "_metrics", None)
    if not isinstance(found, dict):
        return {}
    return {mode: copy.deepcopy(dict(values)) for mode, values in found.items()}


def _put_metrics(trainer: Any, metrics: dict[str, dict[str, Any]]) -> None:
    for mode, values in metrics.items():
        trainer._metrics[mode].clear()
        trainer._metrics[mode].update(values)


def _running_loss(trainer: Any) -> torch.Tensor | None:
    """The sum of losses since the last log line: an attribute, in older versions a local."""
    found = getattr(trainer, "_tr_loss", None)
    frame: FrameType | None = sys._getframe(1)
    while found is None and frame is not None:
        if frame.f_locals.get("self") is trainer:
            found = frame.f_locals.get("tr_loss")
        frame = frame.f_back
    return found if isinstance(found, torch.Tensor) else None
