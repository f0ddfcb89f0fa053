"""LossMeter: adds up the losses of a step's micro-batches on the device."""

import torch

from trimtab.live.ranks.shards import local

Number = float | int | torch.Tensor


class LossMeter:
    """The token-weighted sum of the losses since the last step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._weighted: torch.Tensor | None = None
        self._tokens: torch.Tensor | float = 0.0
        self.num_records = 0

    def add(self, loss: Number, tokens: Number | None) -> None:
        """Take one micro-batch; without a token count each weighs the same."""
        value = as_scalar(loss, self._device)
        weight = 1.0 if tokens is None else tokens
        if isinstance(weight, torch.Tensor):
            weight = as_scalar(weight, self._device)
        weighted = value * weight
        self._weighted = weighted if self._weighted is None else self._weighted + weighted
        self._tokens = self._tokens + weight
        self.num_records += 1

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted sum and the tokens it stands for; the meter starts anew."""
        weighted = (
            torch.zeros((), device=self._device) if self._weighted is None else self._weighted
        )
        tokens = as_scalar(self._tokens, self._device)
        self.forget()
        return weighted, tokens

    def forget(self) -> None:
        """Start anew."""
        self._weighted, self._tokens, self.num_records = None, 0.0, 0


def as_scalar(value: Number, device: torch.device) -> torch.Tensor:
    """A number as a detached fp32 scalar on the device; a host number travels inside a kernel."""
    if isinstance(value, torch.Tensor):
        # A replicated DTensor, as clip_grad_norm_ returns it, is whole on every rank.
        scalar = local(value.detach()).reshape(()).float()
        return scalar.to(device, non_blocking=True)
    return torch.full((), float(value), device=device)
