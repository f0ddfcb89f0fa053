"""The records of a run in a file, in a folder that is kept."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Block, Column


def save(path: Path, records: list[dict[str, float]]) -> None:
    """Write records as one array per signal; NaN of a missing value is told by a mask."""
    names = sorted({name for record in records for name in record})
    arrays: dict[str, Any] = {}
    for place, name in enumerate(names):
        rows = [row for row, record in enumerate(records) if name in record]
        arrays[f"r{place}"] = np.array(rows, dtype=np.int32)
        arrays[f"v{place}"] = np.array([records[row][name] for row in rows])
    np.savez_compressed(path, names=np.array(names), length=len(records), **arrays)


def load(path: Path) -> Block:
    """Return the block of a file that `save` wrote."""
    with np.load(path) as file:
        length = int(file["length"])
        columns = {}
        for place, name in enumerate(file["names"].tolist()):
            values, present = np.full(length, np.nan), np.zeros(length, dtype=np.bool_)
            values[file[f"r{place}"]] = file[f"v{place}"]
            present[file[f"r{place}"]] = True
            columns[name] = Column(values=values, present=present)
    return Block.from_columns(columns, step=np.arange(1, length + 1))


def cache_folder(name: str) -> Path:
    """Return where the records of a benchmark are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "trimtab" / name
