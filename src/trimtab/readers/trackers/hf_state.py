"""HF's `trainer_state.json`: a JSON document in each checkpoint, with everything logged so far."""

import re
from collections.abc import Sequence
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.aliases import Alias
from trimtab.readers.formats import Format
from trimtab.readers.json_objects import decode_items
from trimtab.readers.log_file import LogFile, Progress
from trimtab.readers.table import Table
from trimtab.readers.trackers.hf_losses import restore_hf_losses

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_REACHED = re.compile(rb'"global_step"\s*:\s*(\d{1,18})\b')

_HEAD_BYTES = 1 << 12
"""The keys are sorted: `global_step` is within the first 300 bytes of real files."""


def read(path: Path, progress: Progress) -> Table:
    """Read a trainer state, as far as it was written."""
    file = LogFile(path, progress)
    text = file.read().decode("utf-8-sig", "replace")
    history = _HISTORY.search(text)
    if history is None:
        raise UnreadableLog(f"{path} has no log_history; give a trainer_state.json of HF's Trainer")
    items = decode_items(text, history.end())
    if not items.records:
        raise UnreadableLog(f"{path} has an empty log_history; check that the run logged anything")
    table = Table()
    table.add_records(items.records)
    if not items.closed:
        table.add_note("log_history is cut off or damaged; everything before that was read.")
    for note in file.notes:
        table.add_note(note)
    # The last record has the mean over the whole run, which is not the loss of any step.
    table.meanings["train_loss"] = Alias(signal="train_loss", name="train_loss")
    restore_hf_losses(table)
    return table


def recognises(head: bytes) -> bool:
    """Whether these bytes are the start of a JSON object with a log history in it."""
    text = head.decode("utf-8-sig", "replace")
    return text.lstrip().startswith("{") and _HISTORY.search(text) is not None


def states_among(files: Sequence[Path]) -> list[Path]:
    """The trainer states, the one that reaches farthest first."""
    states = [file for file in files if file.name == "trainer_state.json"]
    return sorted(states, key=lambda path: (_reached(path), str(path)), reverse=True)


def _reached(path: Path) -> int:
    """The step that a trainer state was written at; -1 if it does not say."""
    try:
        with path.open("rb") as file:
            found = _REACHED.search(file.read(_HEAD_BYTES))
    except OSError:
        return -1
    return int(found[1]) if found else -1


HF = Format(
    name="hf",
    description="trainer_state.json of HF's Trainer",
    suffixes=(),
    matches=recognises,
    load=read,
    logs_among=states_among,
)
"""The format."""
