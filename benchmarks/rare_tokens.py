"""The tokens that a model hardly ever sees in training."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.corpus.options import RARE
from trimtab.lab.corpus.data import TokenCorpus


@dataclass(frozen=True, slots=True, kw_only=True)
class RareTail:
    """The rare tokens of a corpus."""

    never: npt.NDArray[np.int64]
    """Tokens that never occur: left over from merges that a longer merge always replaces."""

    rare: npt.NDArray[np.int64]
    """Tokens that occur 1 to 9 times."""

    occurrences: int
    """Total occurrences of the rare tokens."""


def rare_tail(corpus: TokenCorpus, below: int = RARE) -> RareTail:
    """The tokens with fewer than `below` occurrences in the training split."""
    counts = corpus.counts()
    rare = np.flatnonzero((counts > 0) & (counts < below))
    return RareTail(
        never=np.flatnonzero(counts == 0), rare=rare, occurrences=int(counts[rare].sum())
    )
