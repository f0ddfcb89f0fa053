"""Batches by data position: the same global batch whatever the number of workers or ranks.

position p                   rows p * B ... p * B + B - 1 of an endless sequence of windows,
                             which is one seeded permutation of all windows after the other
rank r of W                  rows r * B / W ... (r + 1) * B / W - 1 of that batch

A batch is a function of its position alone, so resuming is counting.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.shards import Split, TokenCorpus
from trimtab.lab.corpus.text import Source

_ENDLESS = range(2**62)
"""The positions of a loader: a run ends when its loop does, and epochs pass inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How a corpus becomes batches."""

    batch_size: int
    """Windows in a batch, over all ranks."""

    length: int
    """Tokens in a window."""

    seed: int = 0
    """Decides the order of the windows."""

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
    """The token that follows each."""

    position: int
    """Data position: the index of the global batch, the same on all ranks."""

    source_shares: Mapping[Source, float]
    """Share of each source in the global batch, the same on all ranks."""

    def numel(self) -> int:
        """Number of tokens in these rows."""
        return self.tokens.numel()

    def to(self, device: torch.device | str) -> Self:
        """The same batch on a device; from pinned memory the host does not wait for it."""
        tokens, targets = (t.to(device, non_blocking=True) for t in (self.tokens, self.targets))
        return replace(self, tokens=tokens, targets=targets)

    def pin_memory(self) -> Self:
        """The same batch where a device can fetch it by itself; the loader calls this."""
        return replace(self, tokens=self.tokens.pin_memory(), targets=self.targets.pin_memory())


class WindowDataset(Dataset[Batch]):
    """Fixed-length windows over the tokens of a split; `dataset[position]` is a batch.

    A window lies in one source. It shares its last target with the first token of the next one, so
    each token is predicted once per epoch.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        config: DataConfig,
        *,
        split: Split = Split.TRAIN,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in 0 to {world_size - 1}, got {rank}")
        if config.batch_size % world_size:
            raise ConfigError(f"batch_size {config.batch_size} must divide by {world_size} ranks")
        self.config = config
        rows = config.batch_size // world_size
        self._share = slice(rank * rows, (rank + 1) * rows)
        tokens = corpus.tokens(split)
        self._sources = tuple(tokens)
        counts = [max(len(array) - 1, 0) // config.length for array in tokens.values()]
        self.windows = sum(counts)
        """Windows in an epoch."""
        if not self.windows:
            raise ConfigError(f"no window of {config.length} tokens in the {split} split")
        # Some MB: all of it in memory, so that a batch is one gather.
        self._tokens = np.concatenate(list(tokens.values()))
        lengths = [len(array) for array in tokens.values()]
        begins = np.cumsum([0, *lengths[:-1]])
        starts = [
            begin + config.length * np.arange(count)
            for begin, count in zip(begins, counts, strict=True)
        ]
        self._starts = np.concatenate(starts)
        self._labels = np.repeat(np.arange(len(counts)), counts)
        self._orders: dict[int, npt.NDArray[np.int64]] = {}

    def __getitem__(self, position: int) -> Batch:
        windows = self._windows_at(position)
        starts = self._starts[windows[self._share], np.newaxis]
        both = self._tokens[starts + np.arange(self.config.length + 1)].astype(np.int64)
        shares = np.bincount(self._labels[windows], minlength=len(self._sources)) / len(windows)
        return Batch(
            tokens=torch.from_numpy(both[:, :-1].copy()),
            targets=torch.from_numpy(both[:, 1:].copy()),
            position=position,
            source_shares=dict(zip(self._sources, shares.tolist(), strict=True)),
        )

    def epoch_of(self, position: int) -> int:
        """How often the whole split was seen before the first row of this batch."""
        return position * self.config.batch_size // self.windows

    def _windows_at(self, position: int) -> npt.NDArray[np.int64]:
        """The windows of a global batch; at the end of an epoch some are of the next one."""
        first = position * self.config.batch_size
        places = np.arange(first, first + self.config.batch_size)
        epochs = places // self.windows
        windows = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            windows[here] = self._order(epoch)[places[here] % self.windows]
        return windows

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The permutation of all windows that an epoch runs through."""
        if epoch not in self._orders:
            random = np.random.default_rng((self.config.seed, epoch))
            # Only the neighbour epoch is still of use: a batch may lie across a boundary.
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = random.permutation(self.windows)
        return self._orders[epoch]


class Loader(Protocol):
    """An endless stream of batches that knows where it is: a torchdata `StatefulDataLoader`."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position; the same on all ranks, for any number of ranks."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter()` go on where the state was taken."""
        ...


def make_loader(dataset: WindowDataset, *, workers: int = 0, pin_memory: bool = False) -> Loader:
    """Serve the batches of a dataset in the order of their positions.

    A state can be loaded with any number of ranks, but only with the same number of workers.
    """
    with warnings.catch_warnings():
        # torchdata 0.11 calls what torch 2.13 deprecates; no user can do anything about it.
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        loader: Loader = StatefulDataLoader(
            dataset,
            batch_size=None,  # the dataset makes whole batches
            sampler=_ENDLESS,
            num_workers=workers,
            pin_memory=pin_memory,
            # Its own generator: the seed that it draws for its workers must not come from the
            # generator that the run depends on.
            generator=torch.Generator().manual_seed(dataset.config.seed),
        )
    return loader
