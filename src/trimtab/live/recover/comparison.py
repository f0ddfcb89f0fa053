"""Comparison: whether an earlier state does better than the present one on the present batches.

The loss alone is no proof of harm: a new data mix raises it too. But on the very batches that come
now, weights that have learned from the new mix do better than those from before it, and weights
that were harmed do worse. So when the loss has risen, the remembered batches of the last steps are
run forward twice, with the present weights and with those of a snapshot, and the snapshot must win
on every one of them. Needs `batch_loss`.

Left out: a state that code has changed since the snapshot (a head that is reset loses on purpose),
a learning rate that has risen within the last 128 updates (it would do the same again), and any
other option of the optimizer that has changed in them (more weight decay is worse on purpose).
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Adam, Optimizer

from trimtab.core.robust import median, sigma_around
from trimtab.live.optimizers import parameters_of
from trimtab.live.recover.snapshots import Snapshots, reshard
from trimtab.live.shield import log
from trimtab.state.batches import map_tensors, tensors_in
from trimtab.state.host_copy import CopyToHost, CopyToLive, detached
from trimtab.state.rng import get_random_state, set_random_state

RECENT, BEFORE = 4, 32
"""Losses that are compared: the last 4 with the 32 before the snapshot."""

RISEN_SIGMAS = 4.0
"""Of the losses before the snapshot, by which each of the recent ones must be higher. Source: the
gate's limit for a loss that is no noise. With half of it no fault more was undone."""

MIN_GAIN = 0.15
"""By which share of its loss the snapshot must be better. Source: in 26 purposeful phases of a
small GPT the earlier state was at most 4 % better on the present batches, in faults 8 to 180 %."""

MAX_LR_RATIO, SETTLED = 1.5, 128
"""Of the present learning rate to the lowest of the last 128 updates. Chosen: what another option
does to the loss is over, or has begun to show in all losses that are compared."""

EVERY = 16
"""Updates between two comparisons: a few forward passes each."""

NUM_BATCHES, MAX_BYTES = 4, 256 << 20
"""Batches that are remembered, and their size in memory at most."""


class RememberedBatches:
    """Copies of the newest batches that `guard.record(batch=...)` was given."""

    def __init__(self) -> None:
        self._batches: deque[Any] = deque(maxlen=NUM_BATCHES)
        self._has_complained = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Any) -> None:
        """Copy a batch, since loops write to theirs; leave out what cannot be copied."""
        try:
            copied, size = _copy_and_count(batch)
            if size > MAX_BYTES // NUM_BATCHES:
                raise MemoryError(f"it has {size / 1e6:.0f} MB")
            self._batches.append(copied)
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                log.warning(
                    "trimtab: batches of type %s are not remembered, so weights are not compared: "
                    "%s",
                    type(batch).__name__,
                    error,
                )


class LossHistory:
    """The losses of the last updates, the same on every rank."""

    def __init__(self) -> None:
        self._losses: deque[tuple[int, float]] = deque(maxlen=128)
        self._compared = 0

    def add(self, update: int, loss: float) -> None:
        """Take the loss of an update."""
        self._losses.append((update, loss))

    def has_risen_since(self, snapshot: int, update: int) -> bool:
        """Return whether the recent losses are far above those before a snapshot."""
        before = [loss for at, loss in self._losses if at < snapshot][-BEFORE:]
        recent = [loss for at, loss in self._losses if at >= snapshot][-RECENT:]
        if len(before) < BEFORE or len(recent) < RECENT or update - self._compared < EVERY:
            return False
        usual = median(before)
        has_risen = min(recent) > usual + RISEN_SIGMAS * sigma_around(usual, before)
        if has_risen:
            self._compared = update
        return has_risen


class OptionHistory:
    """The learning rates and other options of an optimizer over its last updates."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._rates: deque[list[float]] = deque(maxlen=SETTLED)
        self._others: list[Any] | None = None
        self._num_same = SETTLED
        """Updates since an option other than the learning rate has changed."""

    def add(self) -> None:
        """Note the options of an update."""
        self._rates.append(learning_rates(self._optimizer))
        others = _other_options(self._optimizer)
        is_same = self._others is None or others == self._others
        self._num_same = self._num_same + 1 if is_same else 0
        self._others = others

    @property
    def is_settled(self) -> bool:
        """Whether a loss that has risen is not explained by a change of the options."""
        if self._num_same < SETTLED or not self._rates:
            return False
        now = learning_rates(self._optimizer)
        return all(
            b <= MAX_LR_RATIO * a for then in self._rates for a, b in zip(then, now, strict=False)
        ) and (self._others == _other_options(self._optimizer))


class Comparison:
    """Runs the remembered batches with two states of the weights, and leaves no trace."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        snapshots: Snapshots,
        batch_loss: Callable[[Any], torch.Tensor],
        add_up: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._snapshots = snapshots
        self._batch_loss = batch_loss
        self._add_up = add_up
        self._device = device
        self.batches = RememberedBatches()

    def _is_explained(self, targets: dict[int, int], rate_sums: dict[int, float]) -> bool:
        """Return whether weights have moved no further than Adam's updates do.

        Further means that code wrote them past autograd: `p.data.normal_()` counts no version.
        """
        for which, step in targets.items():
            optimizer = self._optimizers[which]
            if not isinstance(optimizer, Adam):  # of others it is not known how far they go
                continue
            saved = iter(self._snapshots.parameters(which, step))
            reach = rate_sums[which]
            for group in optimizer.param_groups:
                for parameter, host in zip(group["params"], saved, strict=False):
                    if host.data.numel() == 0:
                        continue
                    moved = detached(parameter).float().cpu() - host.data.float()
                    decayed = reach * float(group.get("weight_decay", 0.0)) * host.data.float()
                    if float((moved.abs() - decayed.abs()).square().mean().sqrt()) > 2 * reach:
                        return False
        return True

    def gain(
        self, targets: dict[int, int], rate_sums: dict[int, float], *, has_veto: bool = False
    ) -> float | None:
        """Return by which share of its loss a snapshot is better, None if not on every batch.

        All ranks come here at the same update, and get the same answer: that of all their batches.

        Args:
            targets: The snapshot of each optimizer.
            rate_sums: The sum of each optimizer's learning rates since then.
            has_veto: Whether this rank is against it, whatever the losses.
        """
        failure: Exception | None = None
        is_explained = False
        now: list[torch.Tensor] = []
        then: list[torch.Tensor] = []
        ready = self._add_up(torch.tensor([1.0, float(len(self.batches) > 0)], device=self._device))
        world, num_ready = ready.tolist()
        if num_ready < world:
            return None
        try:
            is_explained = not has_veto and self._is_explained(targets, rate_sums)
            with self._without_trace():
                now = self._losses()
                self._swap_in(targets)
                then = self._losses()
        except Exception as error:  # of the user's function: it must not end the run
            failure = error
        better = [float(a - b) for a, b in zip(now, then, strict=False)]
        sums = torch.tensor(
            [
                sum(better),
                float(sum(then)) if then else 0.0,
                float(sum(gain <= 0 for gain in better) + (not is_explained or bool(failure))),
            ],
            device=self._device,
        )
        gain, level, num_against = self._add_up(sums).tolist()
        if failure is not None:
            log.warning("trimtab: batch_loss failed, so weights are not compared: %s", failure)
        return gain / max(abs(level), 1e-12) if num_against == 0 and better else None

    @torch.no_grad()
    def _losses(self) -> list[torch.Tensor]:
        found = []
        for place, batch in enumerate(self.batches):
            torch.manual_seed(place)  # dropout must be the same for both states
            found.append(self._batch_loss(copy_batch(batch)).detach().float().mean())
        return found

    def _swap_in(self, targets: dict[int, int]) -> None:
        copies = CopyToLive()
        for which, step in targets.items():
            live = [p for group in self._optimizers[which].param_groups for p in group["params"]]
            copies.put(self._snapshots.parameters(which, step), live)
        copies.finish()
        reshard(self._model)

    @contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Restore parameters, buffers, training modes and random numbers afterwards."""
        random = get_random_state()
        modes = {module: module.training for module in self._model.modules()}
        live = {
            "parameters": parameters_of(self._optimizers),
            "buffers": dict(self._model.named_buffers()),
        }
        copies = CopyToHost()
        saved = copies.copy(live)
        copies.finish()
        try:
            yield
        finally:
            back = CopyToLive()
            back.put(saved, live)
            back.finish()
            reshard(self._model)
            for module, mode in modes.items():
                module.training = mode
            set_random_state(random)


def learning_rates(optimizer: Optimizer) -> list[float]:
    """Return the learning rates that are known on the host."""
    rates = (group.get("lr") for group in optimizer.param_groups)
    return [float(rate) for rate in rates if isinstance(rate, int | float)]


def _other_options(optimizer: Optimizer) -> list[Any]:
    """Return the options of each group that are known on the host, without the learning rate."""
    plain = (int, float, str, tuple, type(None))
    return [
        {k: v for k, v in group.items() if k not in ("params", "lr") and isinstance(v, plain)}
        for group in optimizer.param_groups
    ]


def copy_batch(batch: Any) -> Any:
    """Return a copy of a batch of any class: `batch_loss` may write to it."""
    return _copy_and_count(batch)[0]


def _copy_and_count(batch: Any) -> tuple[Any, int]:
    """Return a copy of a batch of any class, and the bytes of the arrays and tensors in it.

    A batch whose tensors have a graph has those copied by themselves.
    """
    memo: dict[int, Any] = {}
    try:
        copied = copy.deepcopy(batch, memo)
        parts = list(memo.values())  # all that was copied, in objects of any class
    except RuntimeError:
        copied = map_tensors(batch, lambda tensor: tensor.detach().clone())
        parts = tensors_in(copied)
    arrays = (part for part in parts if isinstance(part, torch.Tensor | np.ndarray))
    return copied, sum(array.nbytes for array in arrays)
