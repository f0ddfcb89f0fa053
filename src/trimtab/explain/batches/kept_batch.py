"""KeptBatch: the token ids of one step's batch, and the losses of its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import NO_POSITION, FloatArray

TokenRows = NDArray[np.int32]
"""Token ids, one sequence a row; a negative id is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatch:
    """What is kept of the batch of one step."""

    tick: int
    step: int
    data_position: int = NO_POSITION
    """Of the first micro-batch; the others follow."""
    parts: tuple[TokenRows, ...] = ()
    """The token ids of each micro-batch."""
    losses: tuple[FloatArray, ...] = ()
    """For each micro-batch, a row per sequence: mean loss, largest loss of a token, and the place
    of that token. Empty if no losses of sequences were recorded."""

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return sum(rows.nbytes for rows in self.parts) + sum(rows.nbytes for rows in self.losses)

    @property
    def num_rows(self) -> int:
        """The number of sequences."""
        return sum(len(part) for part in self.parts or self.losses)

    def position_of(self, part: int) -> int:
        """The data position of a micro-batch."""
        return NO_POSITION if self.data_position == NO_POSITION else self.data_position + part

    def tokens(self) -> TokenRows:
        """All token ids, without padding."""
        return flat_tokens(self.parts)


def flat_tokens(parts: Sequence[TokenRows]) -> TokenRows:
    """The token ids of these sequences in one flat array, without padding."""
    if not parts:
        return np.zeros(0, dtype=np.int32)
    flat = np.concatenate([part.reshape(-1) for part in parts])
    if flat.size and flat.min() < 0:  # looking costs a tenth of selecting
        flat = flat[flat >= 0]
    return flat
