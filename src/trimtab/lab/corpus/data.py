"""Batches by data position: the same global batch for any number of ranks.

position p                   rows p * B ... p * B + B - 1 of an endless sequence of windows, which
                             is one seeded permutation of all windows per epoch
rank r of W                  rows r * B / W ... (r + 1) * B / W - 1 of that batch

A batch depends on its position alone, so a resume only needs the position.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.text import Source

TokenArray = npt.NDArray[np.uint16]
"""Tokens as they are stored."""

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"


class CorpusSplit(StrEnum):
    """The use of a part of the corpus."""

    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, kw_only=True)
class TokenCorpus:
    """Labelled token files in a folder, with the manifest that describes them."""

    folder: Path
    manifest: dict[str, Any]
    """Versions and vocabulary size; source, split, counts and checksum of each file."""

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the corpus in a folder; None if it does not exist or is damaged."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            for name, entry in manifest["files"].items():
                if file_checksum(folder / name) != entry["sha256"]:
                    return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return cls(folder=folder, manifest=manifest)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including those that never occur."""
        return int(self.manifest["vocab_size"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.folder / TOKENIZER))

    def tokens(self, split: CorpusSplit) -> dict[Source, TokenArray]:
        """Return the tokens of a split by source, in the order of the labels."""
        arrays: dict[Source, TokenArray] = {}
        for source in Source:
            name = shard_name(source, split)
            if name in self.manifest["files"]:
                arrays[source] = np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        return arrays

    def counts(self) -> npt.NDArray[np.int64]:
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for array in self.tokens(CorpusSplit.TRAIN).values():
            counts += np.bincount(array, minlength=self.vocab_size)
        return counts


def shard_name(source: Source, split: CorpusSplit) -> str:
    return f"{split}-{source}.npy"


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How a corpus becomes batches."""

    batch_size: int
    """Windows in a batch, over all ranks."""
    length: int
    """Tokens in a window."""
    seed: int = 0
    """Determines the order of the windows."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One rank's rows of a global batch."""

    tokens: Tensor
    """(rows, length) of int64."""
    targets: Tensor
    """The token that follows each of them."""
    position: int
    """Data position: the index of the global batch, the same on all ranks."""

    def numel(self) -> int:
        return self.tokens.numel()

    def to(self, device: torch.device | str) -> Self:
        """Return the same batch on a device; the copy from pinned memory is asynchronous."""
        tokens, targets = (t.to(device, non_blocking=True) for t in (self.tokens, self.targets))
        return replace(self, tokens=tokens, targets=targets)

    def pin_memory(self) -> Self:
        return replace(self, tokens=self.tokens.pin_memory(), targets=self.targets.pin_memory())


class WindowDataset:
    """Fixed-length windows over the tokens of a split; `dataset[position]` is a batch.

    Each window lies within one source. Its last target is the first token of the next window, so
    each token is predicted once per epoch.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        config: DataConfig,
        *,
        split: CorpusSplit = CorpusSplit.TRAIN,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in 0 to {world_size - 1}, got {rank}")
        if config.batch_size % world_size:
            raise ConfigError(
                f"batch_size {config.batch_size} must be divisible by {world_size} ranks"
            )
        self.config = config
        rows = config.batch_size // world_size
        self._share = slice(rank * rows, (rank + 1) * rows)
        tokens = corpus.tokens(split)
        counts = [max(len(array) - 1, 0) // config.length for array in tokens.values()]
        self.windows = sum(counts)
        """Windows in an epoch."""
        if not self.windows:
            raise ConfigError(f"no window of {config.length} tokens in the {split} split")
        # A few MB: kept in memory, so that a batch is one gather.
        self._tokens = np.concatenate(list(tokens.values()))
        lengths = [len(array) for array in tokens.values()]
        begins = np.cumsum([0, *lengths[:-1]])
        starts = [
            begin + config.length * np.arange(count)
            for begin, count in zip(begins, counts, strict=True)
        ]
        self._starts = np.concatenate(starts)
        self._orders: dict[int, npt.NDArray[np.int64]] = {}

    def __getitem__(self, position: int) -> Batch:
        windows = self._windows_at(position)
        starts = self._starts[windows[self._share], np.newaxis]
        both = self._tokens[starts + np.arange(self.config.length + 1)].astype(np.int64)
        return Batch(
            tokens=torch.from_numpy(both[:, :-1].copy()),
            targets=torch.from_numpy(both[:, 1:].copy()),
            position=position,
        )

    def _windows_at(self, position: int) -> npt.NDArray[np.int64]:
        """Return the windows of a global batch, which may span two epochs."""
        first = position * self.config.batch_size
        places = np.arange(first, first + self.config.batch_size)
        epochs = places // self.windows
        windows = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            windows[here] = self._order(epoch)[places[here] % self.windows]
        return windows

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch not in self._orders:
            random = np.random.default_rng((self.config.seed, epoch))
            # Keep the previous epoch only: a batch may span two epochs.
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = random.permutation(self.windows)
        return self._orders[epoch]


class Loader:
    """An endless stream of the batches of a dataset; its state is the next position.

    A saved state can be loaded with any number of ranks.
    """

    def __init__(self, dataset: WindowDataset, *, pin_memory: bool = False) -> None:
        self._dataset = dataset
        self._pins = pin_memory
        self._position = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self._dataset[self._position]
            self._position += 1
            yield batch.pin_memory() if self._pins else batch

    def state_dict(self) -> dict[str, int]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._position = state["position"]
