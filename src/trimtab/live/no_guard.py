"""NoGuard: the guard of a run that is not watched."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from trimtab.core.incidents import Incident
from trimtab.live.loop.checkpoint_boundary import CheckpointBoundary
from trimtab.live.loop.step_loop import LoaderSource, Step, StepLoop
from trimtab.live.shield import Shield

if TYPE_CHECKING:
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints


class NoGuard:
    """The interface of a guard; it does nothing."""

    incidents: tuple[Incident, ...] = ()
    recovery = None

    def __init__(
        self, model: nn.Module, first_step: int, checkpoints: "Checkpoints | None" = None
    ) -> None:
        self._model = model
        self._next_step = first_step
        start = 0 if checkpoints is None else checkpoints.resumed.data_position
        self._source = LoaderSource((), start)
        self._checkpoints = checkpoints
        shield = Shield("checkpoints", "they are not judged")
        self._boundary = CheckpointBoundary(checkpoints, shield, lambda: None, self.state_dict)

    def record(self, **numbers: Any) -> None:
        """Do nothing."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does."""
        if isinstance(self._model, FullyShardedDataParallel):
            return self._model.clip_grad_norm_(max_norm)
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)

    def skip(self) -> None:
        """Do nothing."""

    def event(self, kind: str, **facts: Any) -> None:
        """Do nothing."""

    def steps(
        self, loader: Iterable[Any], accumulate: int = 1, *, data_position: int | None = None
    ) -> Iterator[Step]:
        """Go through a loader in steps of `accumulate` batches."""
        start = self._source.position if data_position is None else data_position
        checkpoints = self._checkpoints
        batches = loader if checkpoints is None else checkpoints.batches(loader)
        self._source = LoaderSource(batches, start)
        loop = StepLoop(self._source, accumulate)
        while (step := loop.next_step(self._next_step)) is not None:
            self._boundary.is_in_loop = True
            try:
                yield step
            finally:
                self._boundary.is_in_loop = False
            self._next_step += 1
            self._boundary.save_if_wanted(self._next_step, self._source.position)

    def rollback(self, to: int, *arguments: Any, **options: Any) -> None:
        """Do nothing."""

    def probe(self, experiment: str, step: int) -> None:
        """Do nothing."""

    def release(self, *names: str) -> None:
        """Do nothing."""

    def checkpoint(self, step: int | None = None) -> None:
        """Save a checkpoint, on all ranks, at the end of this step."""
        self._boundary.request(step, None)

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self, how: str | None = None) -> None:
        """Wait for a checkpoint that is being saved."""
        self._boundary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
