"""PairedProbe: known-good batches through the present weights, against their losses in training.

    reading = mean over batches of (loss now - loss when the batch was trained on)

The noise between batches cancels. A healthy run reads a little below 0, because it has learnt since
then; weights that are broken read +1 and more, however normal the training loss looks.

It is collective: all ranks probe at the same boundary, with the same number of batches.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trimtab.core.errors import ConfigError
from trimtab.live.measure.activations import Activations
from trimtab.live.recover.traceless import traceless
from trimtab.live.shield import log

BatchLoss = Callable[[Any], torch.Tensor]
"""Takes a batch as the loader gave it; returns its loss, as the user's loop computes it."""

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Adds a vector up over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """What a probe has found; the same on all ranks."""

    value: float
    """The mean difference in nats; NaN if a loss was not finite."""
    num_batches: int
    by_step: tuple[float, ...] = ()
    """The difference for each step, in the order given."""


class PairedProbe:
    """Runs batches again, without a trace."""

    def __init__(
        self,
        model: nn.Module,
        batch_loss: BatchLoss,
        reduce: Reduce,
        device: torch.device,
        activations: Activations | None = None,
    ) -> None:
        self._model = model
        self._batch_loss = batch_loss
        self._reduce = reduce
        self._device = device
        self._activations = activations
        self.has_failed = False
        """Whether `batch_loss` raised on any rank: from then on nothing is probed."""

    def read(
        self, steps: Mapping[int, Sequence[Any]], trained: Mapping[int, float]
    ) -> ProbeReading | None:
        """Probe with the batches of these steps; None if a rank could not.

        All ranks reduce, whatever they have: if one returned early, the others would wait for it.

        Args:
            steps: The batches of each step, as the loader gave them to this rank; None for one that
                this rank no longer has.
            trained: The loss of each step when it was trained on, over all ranks.
        """
        losses, error = torch.full((len(steps),), math.nan, device=self._device), None
        is_complete = all(batch is not None for batches in steps.values() for batch in batches)
        try:
            if is_complete:
                losses = self._losses(list(steps.values()))
        except Exception as raised:  # the user's code, which no shield of ours may hide
            error = raised
        facts = (1.0, float(error is not None), float(not is_complete))
        counts = torch.tensor(facts, device=self._device)
        *sums, world, num_failed, num_incomplete = self._reduce(
            torch.cat((losses, counts))
        ).tolist()
        if num_failed > 0:
            self.has_failed = True
            where = "on this rank" if error is not None else "on another rank"
            log.error(
                "trimtab: batch_loss raised %s, so weights are not probed any more; training "
                "continues",
                where,
                exc_info=error,
            )
            return None
        if num_incomplete > 0:
            return None
        apart = [total / world - trained[step] for step, total in zip(steps, sums, strict=True)]
        return ProbeReading(
            value=sum(apart) / len(apart), num_batches=len(apart), by_step=tuple(apart)
        )

    def _losses(self, steps: Sequence[Sequence[Any]]) -> torch.Tensor:
        """The mean loss of each step's batches, on this rank."""
        paused = nullcontext() if self._activations is None else self._activations.paused()
        with paused, traceless(self._model):
            found = [
                torch.stack([self._loss(batch) for batch in batches]).mean() for batches in steps
            ]
        return torch.stack(found)

    def _loss(self, batch: Any) -> torch.Tensor:
        loss = self._batch_loss(batch)
        return torch.as_tensor(loss, device=self._device).detach().float().mean()


def no_batch_loss(batch: Any) -> torch.Tensor:
    """What a rank calls that was given no function, while the first rank was given one."""
    raise ConfigError("watch(batch_loss=...) is missing on this rank; pass it on every rank")
