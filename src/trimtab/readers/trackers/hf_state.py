"""HF's `trainer_state.json`: one JSON document that ends a checkpoint, with all that was logged."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.core.errors import UnreadableLog
from trimtab.readers.aliases import Alias
from trimtab.readers.formats import Reader
from trimtab.readers.jsonl_log import decode_json, flatten
from trimtab.readers.lines import Progress
from trimtab.readers.table import Table
from trimtab.readers.trackers.hf_losses import restore_hf_losses

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_REACHED = re.compile(rb'"global_step"\s*:\s*(\d{1,18})\b')

_HEAD_BYTES = 1 << 12
"""The keys are sorted: `global_step` stands within the first 300 bytes of real files."""


def read(path: Path, progress: Progress) -> Table:
    """Read a trainer state, as far as it was written."""
    data = path.read_bytes()
    text = data.decode("utf-8-sig", "replace")
    history = _HISTORY.search(text)
    if history is None:
        raise UnreadableLog(f"{path} has no log_history; give a trainer_state.json of HF's Trainer")
    records, whole = _records(text, history.end())
    if not records:
        raise UnreadableLog(f"{path} has an empty log_history; check that the run logged anything")
    table = Table()
    table.add_records(records)
    if not whole:
        table.tell("The file is cut off or damaged within log_history; read is what stands before.")
    # The last record has the mean over the whole run, which is the loss of no step.
    table.meanings["train_loss"] = Alias(signal="train_loss", name="train_loss")
    restore_hf_losses(table)
    progress(len(data), len(data))
    return table


def recognises(head: bytes) -> bool:
    """Whether these bytes are the start of a JSON object with a log history in it."""
    text = head.decode("utf-8-sig", "replace")
    return text.lstrip().startswith("{") and _HISTORY.search(text) is not None


def states_among(files: Sequence[Path]) -> list[Path]:
    """The trainer states, the one that reaches farthest first."""
    states = [file for file in files if file.name == "trainer_state.json"]
    return sorted(states, key=lambda path: (_reached(path), str(path)), reverse=True)


def _records(text: str, start: int) -> tuple[list[Mapping[str, Any]], bool]:
    """The records from a place on, and whether the list was closed."""
    records: list[Mapping[str, Any]] = []
    while True:
        between = _BETWEEN.match(text, start)
        start = between.end() if between else start
        if text.startswith("]", start):
            return records, True
        try:
            record, start = decode_json(text, start)
        except (ValueError, RecursionError):
            return records, False
        if isinstance(record, dict):
            records.append(flatten(record))


def _reached(path: Path) -> int:
    """The step that a trainer state was written at; -1 if it does not say."""
    try:
        with path.open("rb") as file:
            found = _REACHED.search(file.read(_HEAD_BYTES))
    except OSError:
        return -1
    return int(found[1]) if found else -1


HF = Reader(
    description="trainer_state.json of HF's Trainer",
    suffixes=(),
    recognises=recognises,
    read=read,
    logs_among=states_among,
)
"""The format."""
