"""Run directories as a writer leaves them, made without the way through text."""

from collections.abc import Callable, Mapping

import numpy as np

from trimtab.core.block import Block, Column, FloatArray, IntArray
from trimtab.journal import RunDirectory
from trimtab.journal.files import JournalFiles
from trimtab.journal.sealed_segment import write_segment
from trimtab.journal.writer import JournalLimits


def write_run(
    run: RunDirectory,
    records: int,
    signals: Callable[[IntArray], Mapping[str, FloatArray]],
    *,
    is_ended: bool = False,
) -> None:
    """Write sealed segments; `signals` gives the values of each signal at some steps."""
    size = JournalLimits().segment_records
    run.journal.mkdir(parents=True)
    for index, start in enumerate(range(0, records, size)):
        rows = np.arange(start, min(start + size, records))
        columns = {name: Column.complete(values) for name, values in signals(rows).items()}
        entries: list[dict[str, object]] = [
            {"kind": "segment", "schema": 1, "index": index, "qualities": {}}
        ]
        if is_ended and start + size >= records:
            entries.append({"kind": "end", "how": "finished"})
        block = Block.from_columns(columns, step=rows, tick=rows)
        write_segment(JournalFiles(run.journal).sealed(index), block, entries)
