"""What is known of a batch: fingerprint, tokens and token ids on the host, and losses by row."""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from trimtab.core import signals
from trimtab.core.block import FloatArray, IntArray
from trimtab.core.token_losses import BINS_PER_OCTAVE, FIRST_OCTAVE, NUM_BINS
from trimtab.journal.batches.rows import TokenRows
from trimtab.live.arithmetic import OddNumber
from trimtab.live.ranks.exchange import HostCopy, copy_to_host
from trimtab.live.shield import log
from trimtab.state.host_copy import local

MAX_TOKEN_ID = 1 << 20
"""Token ids beyond this are not a vocabulary; the largest in use have some 260,000 entries."""

SAMPLE_BLOCKS, BLOCK_ELEMENTS = 16, 4096
"""A tensor with more than 65,536 elements is sampled: 16 blocks of 4,096. A batch of 154 MB of
images costs no more than one of tokens."""

MAX_KEPT_TOKENS = 1 << 22
"""A tensor with more elements is not kept for a report: 16 MB as int32, and no batch of text."""

ROW_IDS = "row_ids"
"""The numbers of rows in the data, which are no tokens: the key that a collator gives them."""

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)


class BatchFacts:
    """Measures batches against the tokens seen so far in this run."""

    def __init__(self) -> None:
        self._counts: FloatArray = np.zeros(0)
        self._total = 0.0
        self._token_tensors: list[torch.Tensor] = []
        """Of the step that was measured last."""

    def measure(self, batches: list[Any]) -> dict[str, float]:
        """The facts of the micro-batches of one step; what is not on the host is left out."""
        on_host = [list(_cpu_tensors(batch)) for batch in batches]
        parts = [list(filter(_is_plain, tensors)) for tensors in on_host]
        if any(not _is_strided(tensor) for tensors in on_host for tensor in tensors):
            report_left_out()
        self._token_tensors = []
        if not any(parts):
            return {}
        found = {signals.FINGERPRINT: float(fingerprint(parts))}
        tokens = [pair for tensors in parts if (pair := _tokens(tensors)) is not None]
        if tokens:
            self._token_tensors = [tensor for tensor, _ in tokens]
            found |= self._token_facts(np.concatenate([sample for _, sample in tokens]))
        return found

    def pop_token_rows(self) -> tuple[TokenRows, ...]:
        """Copies of the token ids of the step that was measured last, one array a micro-batch."""
        tensors, self._token_tensors = self._token_tensors, []
        if any(tensor.dim() > 2 or tensor.numel() > MAX_KEPT_TOKENS for tensor in tensors):
            return ()  # images as bytes, not text
        # Copies, because a loader may fill the same memory again.
        arrays = [np.array(tensor.detach().numpy(), dtype=np.int32) for tensor in tensors]
        return tuple(np.atleast_2d(array) for array in arrays)

    def _token_facts(self, tokens: IntArray) -> dict[str, float]:
        if tokens.max() < 8 * tokens.size:  # counting is faster than sorting
            all_counts = np.bincount(tokens)
            ids = np.flatnonzero(all_counts)
            counts = all_counts[ids]
        else:
            ids, counts = np.unique(tokens, return_counts=True)
        size = int(ids[-1]) + 1
        if size > len(self._counts):
            self._counts = np.concatenate((self._counts, np.zeros(size - len(self._counts))))
        chance = (self._counts[ids] + 1.0) / (self._total + len(self._counts))
        self._counts[ids] += counts
        self._total += tokens.size
        surprise = -(counts * np.log(chance)).sum()
        return {
            signals.UNIQUE_TOKEN_SHARE: float(len(ids) / tokens.size),
            signals.TOKEN_RARITY: float(surprise / tokens.size),
        }


@cache
def report_left_out() -> None:
    """Log, once in a process, that tensors without plain numbers are not measured."""
    log.info("trimtab: sparse and nested tensors are left out of what is known of a batch")


def fingerprint_of(batches: list[Any]) -> float | None:
    """Return the fingerprint of micro-batches; None if nothing of them is on the host."""
    parts = [list(filter(_is_plain, _cpu_tensors(batch))) for batch in batches]
    return float(fingerprint(parts)) if any(parts) else None


def fingerprint(batches: list[list[torch.Tensor]]) -> int:
    """crc32 over the bytes of the tensors, of large ones over a sample: equal for equal batches."""
    value = 0
    for tensors in batches:
        for tensor in tensors:
            if tensor.numel() > SAMPLE_BLOCKS * BLOCK_ELEMENTS:
                value = zlib.crc32(repr(tuple(tensor.shape)).encode(), value)
            size = BLOCK_ELEMENTS // 8 if tensor.is_floating_point() else BLOCK_ELEMENTS
            value = zlib.crc32(_sample(tensor, size).view(torch.uint8).numpy().data, value)
    return value


def _sample(tensor: torch.Tensor, size: int = BLOCK_ELEMENTS) -> torch.Tensor:
    """A flat tensor as it is, or blocks of this size spread evenly."""
    tensor = tensor.detach()
    if tensor.numel() <= SAMPLE_BLOCKS * BLOCK_ELEMENTS:
        return tensor.contiguous().reshape(-1)
    if not tensor.is_contiguous():
        rows = torch.linspace(0, len(tensor) - 1, SAMPLE_BLOCKS, device="cpu").long().unique()
        picked = [_corner(tensor[row], size) for row in rows.tolist()]
        return torch.cat(picked).contiguous()
    flat = tensor.view(-1)
    stride = (flat.numel() - size) // (SAMPLE_BLOCKS - 1)
    starts = range(0, SAMPLE_BLOCKS * stride, stride)
    return torch.cat([flat[start : start + size] for start in starts])


def _corner(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Some elements of a tensor that is not contiguous, without copying all of it."""
    while tensor.dim() > 1 and tensor[0].numel() >= size:
        tensor = tensor[0]
    return tensor.reshape(-1)[:size]


def host_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch that are on the host and hold plain numbers, in a fixed order.

    Left out are empty, sparse and nested ones.
    """
    return filter(_is_plain, _cpu_tensors(batch))


def _is_strided(tensor: torch.Tensor) -> bool:
    return not tensor.is_nested and tensor.layout is torch.strided


def _is_plain(tensor: torch.Tensor) -> bool:
    return _is_strided(tensor) and tensor.numel() > 0


def _cpu_tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        if batch.device.type == "cpu":
            yield batch
    elif isinstance(batch, Mapping):
        for name in sorted(batch.keys() - {ROW_IDS}, key=str):
            yield from _cpu_tensors(batch[name])
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _cpu_tensors(part)
    elif dataclasses.is_dataclass(batch):
        for field in dataclasses.fields(batch):
            yield from _cpu_tensors(getattr(batch, field.name))


def _tokens(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, IntArray] | None:
    """The token ids of a batch, and a sample of them without padding.

    Of its whole numbers they are those that reach highest, so no mask.
    """
    whole = [tensor for tensor in tensors if tensor.dtype in _WHOLE and tensor.dim() > 0]
    if not whole:
        return None
    samples = [_sample(tensor).numpy() for tensor in whole]
    index = max(range(len(whole)), key=lambda at: samples[at].max())
    # Padding of targets is negative by custom; it is no token.
    tokens = samples[index][samples[index] >= 0]
    is_vocabulary = tokens.size and tokens.max() < MAX_TOKEN_ID
    return (whole[index], tokens) if is_vocabulary else None


VALUES = 3
"""For each sequence: mean loss, largest loss of a token, and the place of that token."""

MAX_ROWS = 4096
"""Sequences of a micro-batch; more than that are losses of tokens without their sequences."""

MAX_MICRO_BATCHES = 1024
"""Micro-batches that may wait for their step to end."""


class RowLosses:
    """Collects the losses of sequences; they are reduced on the device and read with the lag."""

    def __init__(self) -> None:
        self.copies: list[HostCopy] = []
        """What is under way of this step, one per micro-batch."""
        self._is_given = False

    def add_measured(self, losses: torch.Tensor) -> None:
        """Take losses that a model's output has, unless the user gives them."""
        if not self._is_given and len(losses) <= MAX_ROWS:
            self._add(losses)

    def add(self, losses: Any) -> None:
        """Take the losses of a micro-batch: [batch, sequence] by token, or [batch]."""
        if not self._is_given:
            self._is_given, self.copies = True, []
        if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
            raise OddNumber(type(losses).__name__)
        if losses.dim() == 0 or not losses.numel() or len(losses) > MAX_ROWS:
            raise OddNumber(f"a tensor of shape {tuple(losses.shape)}")
        self._add(losses)

    def _add(self, losses: torch.Tensor) -> None:
        values = torch.cat((reduce_rows(losses), count_losses(losses)))
        if values.device.type != "meta" and len(self.copies) < MAX_MICRO_BATCHES:
            self.copies.append(copy_to_host(values))

    def pop(self) -> tuple[HostCopy, ...]:
        copies, self.copies = self.copies, []
        return tuple(copies)


def reduce_rows(losses: torch.Tensor) -> torch.Tensor:
    """Mean and largest loss of each sequence, and where; a loss of exactly 0 is padding."""
    rows = local(losses.detach()).float()
    rows = rows.reshape(len(rows), -1)
    count = (rows != 0).sum(dim=1).clamp(min=1)
    largest, place = rows.max(dim=1)
    return torch.stack((rows.sum(dim=1) / count, largest, place.float()), dim=1).reshape(-1)


def count_losses(losses: torch.Tensor) -> torch.Tensor:
    """Count the tokens whose loss is in each bin of `token_losses.EDGES`; zeros for sequences."""
    counts = torch.zeros(NUM_BINS, dtype=torch.float32, device=losses.device)
    if losses.dim() < 2:
        return counts
    flat = local(losses.detach()).float().reshape(-1)
    place = ((flat.log2() - FIRST_OCTAVE) * BINS_PER_OCTAVE).nan_to_num().clamp(0, NUM_BINS - 1)
    return counts.index_add_(0, place.long(), (flat > 0).float())
