"""A JSON array of objects: one object per record, as `json.dump(history, file)` writes it.

The file is streamed, so its size does not matter; a log that was cut off is read up to the cut.
"""

import codecs
import re
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import Format
from trimtab.readers.json_objects import decode_items
from trimtab.readers.log_file import LogFile, Progress
from trimtab.readers.table import Table
from trimtab.readers.trackers.hf_losses import is_by_hf, restore_hf_losses

OBJECT_CHARS = 4 << 20
"""No record is longer: text that cannot be decoded up to here is damaged, not incomplete."""

_START = re.compile(r"\s*\[")
_MARK = re.compile(r'\s*\[\s*(?:\{\s*["}]|\])')


def read(path: Path, progress: Progress) -> Table:
    """Read a JSON array, as far as it is sound."""
    file = LogFile(path, progress)
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    table = Table()
    text, started, closed, num_others = "", False, False, 0
    for block in file.blocks():
        text += decoder.decode(block)
        if not started:
            start = _START.match(text)
            if start is None:
                break
            text, started = text[start.end() :], True
        items = decode_items(text, 0)
        table.add_records([record for record in items.records if record])
        num_others += items.num_others
        text, closed = text[items.end :], items.closed
        if closed or len(text) > OBJECT_CHARS:
            break
    if not table.num_rows:
        raise UnreadableLog(
            f"{path} is not a JSON array with objects in it; write [{{...}}, {{...}}], "
            "one object per record"
        )
    for note in file.notes:
        table.add_note(note)
    if num_others:
        table.add_note(f"Items of the array that are not objects, left out: {num_others}.")
    if not closed:
        table.add_note(
            f"The array is cut off or damaged after {table.num_rows} records; what comes after is "
            "left out."
        )
    if is_by_hf(table, ""):
        restore_hf_losses(table)
    return table


def recognises(head: bytes) -> bool:
    """Whether these bytes are the start of an array of objects."""
    return _MARK.match(head.decode("utf-8-sig", "replace")) is not None


JSON = Format(
    name="json",
    description="a JSON array, one object per record",
    suffixes=(),
    matches=recognises,
    load=read,
)
"""The format."""
