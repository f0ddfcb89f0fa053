"""What a batch looks like on the host, before it leaves for the device."""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from trimtab.core import signals
from trimtab.core.block import FloatArray, IntArray

MOST_TOKEN_IDS = 1 << 20
"""Token ids beyond this are not a vocabulary; the largest in use have some 260,000 entries."""

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)


class BatchFacts:
    """Measures batches against the tokens seen so far in this run."""

    def __init__(self) -> None:
        self._counts: FloatArray = np.zeros(0)

    def measure(self, batches: list[Any]) -> dict[str, float]:
        """The facts of the micro-batches of one step; what is not on the host is left out."""
        parts = [list(host_tensors(batch)) for batch in batches]
        if not any(parts):
            return {}
        told = {signals.FINGERPRINT: float(fingerprint(parts))}
        tokens = [tokens for tensors in parts if (tokens := _tokens(tensors)) is not None]
        if tokens:
            told |= self._token_facts(np.concatenate(tokens))
        shares = [share for tensors in parts if (share := _shift_share(tensors)) is not None]
        if shares:
            told[signals.SHIFT_SHARE] = float(np.mean(shares))
        return told

    def _token_facts(self, tokens: IntArray) -> dict[str, float]:
        counts = np.bincount(tokens, minlength=len(self._counts)).astype(np.float64)
        new = len(counts) - len(self._counts)
        self._counts = np.concatenate((self._counts, np.zeros(new)))
        chance = (self._counts + 1.0) / (self._counts.sum() + len(self._counts))
        self._counts += counts
        used = counts > 0
        surprise = -(counts[used] * np.log(chance[used])).sum()
        return {
            signals.UNIQUE_TOKEN_SHARE: float(used.sum() / tokens.size),
            signals.TOKEN_RARITY: float(surprise / tokens.size),
        }


def fingerprint(batches: list[list[torch.Tensor]]) -> int:
    """crc32 over the bytes of the tensors: equal batches have equal ones."""
    value = 0
    for tensors in batches:
        for tensor in tensors:
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            value = zlib.crc32(flat.numpy().data, value)
    return value


def host_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch that are on the host, in a fixed order."""
    if isinstance(batch, torch.Tensor):
        if batch.device.type == "cpu" and batch.numel() and not batch.is_sparse:
            yield batch
    elif isinstance(batch, Mapping):
        for name in sorted(batch, key=str):
            yield from host_tensors(batch[name])
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from host_tensors(part)
    elif dataclasses.is_dataclass(batch):
        for field in dataclasses.fields(batch):
            yield from host_tensors(getattr(batch, field.name))


def _tokens(tensors: list[torch.Tensor]) -> IntArray | None:
    """The token ids of a batch: of its whole numbers those that reach highest, so no mask."""
    whole = [tensor for tensor in tensors if tensor.dtype in _WHOLE and tensor.dim() > 0]
    if not whole:
        return None
    tokens = max((tensor.numpy().reshape(-1) for tensor in whole), key=np.max)
    # Padding of targets is negative by custom; it is no token.
    tokens = tokens[tokens >= 0]
    return tokens if tokens.size and tokens.max() < MOST_TOKEN_IDS else None


def _shift_share(tensors: list[torch.Tensor]) -> float | None:
    """How often a target equals the next input, where a batch is a pair of such tensors."""
    pair = [tensor.numpy() for tensor in tensors if tensor.dtype == torch.int64]
    if len(pair) != 2 or pair[0].shape != pair[1].shape or pair[0].ndim != 2:
        return None
    if pair[0].shape[1] < 2:
        return None
    # Which of the two is the input is not known; the right order is the one that fits.
    one, other = pair
    return float(max(np.mean(other[:, :-1] == one[:, 1:]), np.mean(one[:, :-1] == other[:, 1:])))
