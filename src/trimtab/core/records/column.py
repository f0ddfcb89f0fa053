"""Column: one signal over consecutive records, its values and which of them were recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """One signal over a block."""

    values: FloatArray
    """The recorded numbers; NaN where nothing was recorded."""

    present: BoolArray
    """True where a value was recorded, finite or not."""

    @classmethod
    def missing(cls, length: int) -> Column:
        """A column without any recorded value."""
        return cls(np.full(length, np.nan), np.zeros(length, dtype=np.bool_))

    @classmethod
    def complete(cls, values: FloatArray) -> Column:
        """A column in which every value was recorded."""
        # A broadcast mask takes no memory: most columns of a long run are complete.
        return cls(values, np.broadcast_to(np.True_, values.shape))

    @property
    def recorded(self) -> bool:
        """Whether any value was recorded."""
        return bool(self.present.any())

    @property
    def finite(self) -> BoolArray:
        """True where a finite value was recorded."""
        return self.present & np.isfinite(self.values)

    @property
    def nonfinite(self) -> BoolArray:
        """True where NaN or an infinity was recorded; missing is not non-finite."""
        return self.present & ~np.isfinite(self.values)

    def __getitem__(self, rows: slice) -> Column:
        return Column(self.values[rows], self.present[rows])
