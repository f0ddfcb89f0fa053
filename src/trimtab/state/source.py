"""The data source that a batch names: a `source` key or attribute with a string.

It belongs to the data position: batches of the same position have the same source on all ranks.
"""

from collections.abc import Mapping
from typing import Any

_NAME = "source"


def source_of(batch: Any) -> str | None:
    """The source of a batch; None if it names none, or several."""
    found = batch.get(_NAME) if isinstance(batch, Mapping) else getattr(batch, _NAME, None)
    if isinstance(found, list | tuple) and found and len(set(map(str, found))) == 1:
        found = found[0]  # one name for each row
    return str(found) if isinstance(found, str) and found else None
