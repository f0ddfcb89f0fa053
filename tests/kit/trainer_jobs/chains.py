"""Data that a tiny model can learn: each token is mostly followed by its one successor."""

from typing import Any

import torch
from torch.utils.data import Dataset

NUM_TOKENS, LENGTH, NOISE = 30, 9, 0.2
HELD_OUT = 10_000
"""The seed of the sequences that no run is trained on."""


def sequences(seed: int, count: int) -> torch.Tensor:
    """Tokens 1 to 30, of the shape (count, length)."""
    dice = torch.Generator().manual_seed(seed)
    successor = torch.randperm(NUM_TOKENS, generator=torch.Generator().manual_seed(0))
    token = torch.randint(0, NUM_TOKENS, (count,), generator=dice)
    columns = [token]
    for _ in range(LENGTH - 1):
        other = torch.randint(0, NUM_TOKENS, (count,), generator=dice)
        is_other = torch.rand(count, generator=dice) < NOISE
        token = torch.where(is_other, other, successor[token])
        columns.append(token)
    return torch.stack(columns, dim=1) + 1


def batches(
    seed: int, count: int, size: int, marker: int, marked: tuple[int, ...]
) -> list[torch.Tensor]:
    """Batches; those at the marked places begin with the marker, by which their loss is NaN."""
    found = list(sequences(seed, count * size).reshape(count, size, LENGTH))
    for place in marked:
        found[place][0, 0] = marker
    return found


class Rows(Dataset[dict[str, Any]]):
    """Batches as single sequences, as the Hugging Face Trainer reads them."""

    def __init__(self, data: list[torch.Tensor]) -> None:
        self._rows = torch.cat(data)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[place], "labels": self._rows[place]}
