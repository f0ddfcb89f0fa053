"""A sink: the records of a run as lines of JSON, in a file beside its `trimtab/` folder."""

import json
import os
from pathlib import Path

from trimtab.core.block import Block
from trimtab.core.jsonable import to_jsonable
from trimtab.core.sink import RunStatus, ShippedRun, SinkMemory


class JsonLines:
    """Appends each record once, though the observer may be killed and send it again."""

    name = "json-lines"
    needs_everything = False

    def begin(self, run: ShippedRun, memory: SinkMemory) -> None:
        """Continue the file of an earlier start."""
        self._path: Path = run.home.parent / "records.jsonl"
        self._memory = memory

    def send(self, block: Block) -> None:
        """Append the records; what comes after the saved length was not confirmed, and goes."""
        lines = "".join(
            json.dumps({"step": int(block.step[row]), **_values(block, row)}) + "\n"
            for row in range(len(block))
        )
        size = int(self._memory.values.get("size", 0))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.truncate(size)
            file.seek(size)
            file.write(lines.encode())
        # Saved with the position as soon as this method returns.
        self._memory.values["size"] = size + len(lines.encode())

    def poll(self) -> None:
        """Nothing is due by the clock."""

    def finish(self, status: RunStatus) -> None:
        """Nothing belongs to the end."""

    def close(self) -> None:
        """Nothing stays open."""


def _values(block: Block, row: int) -> dict[str, float | str]:
    return {
        name: to_jsonable(float(column.values[row]))
        for name, column in block.columns.items()
        if column.present[row]
    }
