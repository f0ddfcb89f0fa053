"""Guard: what the user holds while a run is watched."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from trimtab.core import signals
from trimtab.live.loop.step_loop import Step, StepLoop
from trimtab.live.loop.watcher import Watcher
from trimtab.live.measure.loss_meter import Number


class Guard:
    """Watches a run; a bug in here steps aside instead of raising into the training loop."""

    def __init__(self, model: nn.Module, watcher: Watcher) -> None:
        self._model = model
        self._watcher = watcher
        self._ending = "closed"

    def record(
        self,
        *,
        loss: Number | None = None,
        tokens: Number | None = None,
        grad_norm: Number | None = None,
        eval_loss: Number | None = None,
        **own: Number,
    ) -> None:
        """Take the numbers of a micro-batch; call it on every rank.

        `loss` is undivided, `tokens` is what it is the mean of, `grad_norm` is from before
        clipping. Further signals are journalled as the first rank has them.
        """
        watcher = self._watcher
        if loss is not None:  # what makes a step; the other numbers may come at any time
            watcher.count_loss()
        if not watcher.is_watching:
            return
        with watcher.shield.guarding("record"):
            watcher.note_loss_scale()
            if loss is not None:
                watcher.sensors.loss.add(loss, tokens)
            if grad_norm is not None:
                watcher.sensors.give_norm(grad_norm, is_from_user=True)
            if eval_loss is not None:
                watcher.sensors.give_own(signals.EVAL_LOSS, eval_loss)
            for name, value in own.items():
                watcher.sensors.give_own(name, value)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does; the norm from before is returned.

        A guard that protects lets fused optimizers clip inside their update: between this call and
        `optimizer.step()` their gradients are still as they were.
        """
        gate = self._watcher.gate
        if gate is not None and gate.joins:
            norm = gate.clip.clip(max_norm)
        else:
            norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)
        if self._watcher.is_watching:
            with self._watcher.shield.guarding("clip_grad_norm_"):
                self._watcher.sensors.give_norm(norm)
        return norm

    def event(self, kind: str, **facts: Any) -> None:
        """Tell the journal something that happened: an evaluation, a change of the data mix."""
        watcher = self._watcher
        if watcher.is_watching and watcher.host is not None:
            with watcher.shield.guarding("event"):
                watcher.host.event(kind, watcher.next_step, facts)

    def steps(
        self, loader: Iterable[Any], accumulate: int = 1, *, data_position: int = 0
    ) -> Iterator[Step]:
        """Go through a loader in steps of `accumulate` batches.

        `data_position` is that of its first batch: after a resume, where the data goes on.
        """
        watcher = self._watcher
        watcher.loop = StepLoop(loader, accumulate, data_position)
        self._ending = "left the loop"
        for step in watcher.loop.run(lambda: watcher.next_step):
            yield step
            watcher.end_step(step.number)
        self._ending = "end of data"

    def state_dict(self) -> dict[str, Any]:
        """What the gate has learnt, the same on every rank; empty if nothing is protected."""
        gate = self._watcher.gate
        return {} if gate is None else {"gate": gate.rule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what the gate had learnt; call it on every rank, with the same state."""
        gate = self._watcher.gate
        if gate is not None and "gate" in state:
            gate.rule.load_state_dict(state["gate"])

    def close(self, how: str | None = None) -> None:
        """Write what is left, judge what is open, take every hook off again."""
        self._watcher.close(how or self._ending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if kind is None else f"raised {kind.__name__}")


class NoGuard:
    """The guard of a run that is not watched: the same face, and nothing behind it."""

    def __init__(self, model: nn.Module, first_step: int) -> None:
        self._model = model
        self._next_step = first_step

    def record(self, **numbers: Any) -> None:
        """Do nothing."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does."""
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)

    def event(self, kind: str, **facts: Any) -> None:
        """Do nothing."""

    def steps(
        self, loader: Iterable[Any], accumulate: int = 1, *, data_position: int = 0
    ) -> Iterator[Step]:
        """Go through a loader in steps of `accumulate` batches."""
        for step in StepLoop(loader, accumulate, data_position).run(lambda: self._next_step):
            yield step
            self._next_step += 1

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self, how: str | None = None) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""
