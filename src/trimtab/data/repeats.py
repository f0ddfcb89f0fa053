"""mask_repeats: no loss on phrases that are repeated over and over.

The thresholds are those of the scan (`trimtab.corpus.options`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.corpus.kernel.repeats import find_runs, repeated_tokens
from trimtab.corpus.options import MAX_PERIOD, REPEATS

IGNORE_INDEX = -100
"""Labels that the loss leaves out. Source: the default of torch's cross-entropy."""


def mask_repeats(
    tokens: Any,
    labels: Any,
    *,
    whole_rows: bool = False,
    repeats: int = REPEATS,
    max_period: int = MAX_PERIOD,
    ignore_index: int = IGNORE_INDEX,
) -> Any:
    """A copy of the labels in which repeated phrases are ignored; the tokens stay as they are.

    Args:
        tokens: (rows, length) or (length,): arrays, tensors in host memory, or lists of rows.
        labels: One label per token, of the same type. Labels may equal the tokens, as in HF
            trainers, or be the tokens one place later.
        whole_rows: Ignore each row that has a repeated phrase, as OLMo does.
        repeats: A phrase is masked from this many occurrences in a row on.
        max_period: The longest phrase that is looked for.
        ignore_index: The label that the loss leaves out.
    """
    if isinstance(tokens, list):
        rows = [np.asarray(row) for row in tokens]
        settings = (whole_rows, repeats, max_period, ignore_index)
        return [
            _mask_row(row, np.array(label), *settings).tolist()
            for row, label in zip(rows, labels, strict=True)
        ]
    masked = labels.clone() if hasattr(labels, "clone") else labels.copy()
    # A tensor in host memory and its array share their memory.
    target = masked.numpy() if hasattr(masked, "numpy") else masked
    source = tokens.numpy() if hasattr(tokens, "numpy") else tokens
    length = source.shape[-1]
    for row, label in zip(source.reshape(-1, length), target.reshape(-1, length), strict=True):
        label[:] = _mask_row(row, label, whole_rows, repeats, max_period, ignore_index)
    return masked


def _mask_row(
    row: NDArray[Any],
    labels: NDArray[Any],
    whole_rows: bool,
    repeats: int,
    max_period: int,
    ignore_index: int,
) -> NDArray[Any]:
    runs = find_runs(row, repeats=repeats, max_period=max_period)
    if runs:
        mask = slice(None) if whole_rows else repeated_tokens(row, runs)
        labels[mask] = ignore_index
    return labels
