"""The `.wandb` file of a W&B run, as offline mode leaves it: records in a chunk log, of which the
history is read. Neither wandb nor protobuf is needed."""

from collections.abc import Sequence
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.table import Table
from trimtab.readers.trackers.call_steps import CALL_STEP, prefer_steps_beside_loss
from trimtab.readers.trackers.hf_losses import is_by_hf, restore_hf_losses
from trimtab.readers.trackers.tensorboard import protowire
from trimtab.readers.trackers.tensorboard.protowire import BYTES, FIXED64, VARINT, BadMessage
from trimtab.readers.trackers.wandb.chunklog import ChunkLog

_MARK = b":W&B\xe1\xbe"
_HEADER_BYTES = 7

_HISTORY = 2  # field of a record
_ITEM, _STEP = 1, 2  # fields of a history record
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _TEXT, _VALUE_JSON = 1, 2, 5, 6, 7, 16  # fields of an item

_BATCH = 4096
"""Rows that are put into the table at once."""

_CELL_BYTES = 64
"""No number is longer as text; a longer cell is a list or a picture."""

_HF_PREFIX = "train/"

Cell = str | float


def read(path: Path, progress: Progress) -> Table:
    """Read the history of a run."""
    log = ChunkLog(path, progress, header_bytes=_HEADER_BYTES)
    table = Table()
    rows: list[dict[str, Cell]] = []
    num_malformed = 0
    for record in log.records():
        try:
            rows += _rows(record)
        except BadMessage:
            num_malformed += 1
        if len(rows) >= _BATCH:
            table.add_records(rows)
            rows = []
    table.add_records(rows)
    counts = {
        "Damaged places (by checksum), skipped": log.num_bad + num_malformed,
        "Records too long to hold history, left out": log.num_long,
        "Last record cut off, left out": int(log.is_cut),
    }
    notes = [f"{sentence}: {count}." for sentence, count in counts.items() if count]
    if not table.num_rows:
        found = " ".join(notes) or "nothing is damaged"
        raise UnreadableLog(f"{path} has no history ({found}); check that the run logged anything")
    for note in notes:
        table.add_note(note)
    prefer_steps_beside_loss(table)
    if is_by_hf(table, _HF_PREFIX):
        restore_hf_losses(table, _HF_PREFIX)
    return table


def recognises(head: bytes) -> bool:
    """Whether these bytes begin with the mark of W&B."""
    return head.startswith(_MARK)


def runs_among(files: Sequence[Path]) -> list[Path]:
    """The files of runs, the newest first."""
    return newest_first([file for file in files if file.suffix == ".wandb"])


def _rows(record: bytes) -> list[dict[str, Cell]]:
    """The row of a history record; empty for other kinds of records."""
    return [
        _row(record, first, last)
        for number, wire, first, last in protowire.fields(record, 0, len(record))
        if (number, wire) == (_HISTORY, BYTES)
    ]


def _row(data: bytes, start: int, end: int) -> dict[str, Cell]:
    row: dict[str, Cell] = {}
    for number, wire, first, last in protowire.fields(data, start, end):
        if (number, wire) == (_ITEM, BYTES):
            name, cell = _item(data, first, last)
            if cell is not None:
                row[name] = cell
        elif (number, wire) == (_STEP, BYTES):
            for inner, kind, value, _ in protowire.fields(data, first, last):
                if (inner, kind) == (1, VARINT):
                    row.setdefault(CALL_STEP, float(protowire.signed(value)))
    return row


def _item(data: bytes, start: int, end: int) -> tuple[str, Cell | None]:
    """The name and the cell of a history item; None if it holds neither number nor text."""
    names: list[str] = []
    cell: Cell | None = None
    for number, wire, first, last in protowire.fields(data, start, end):
        if number in (_KEY, _NESTED_KEY) and wire == BYTES:
            names.append(protowire.text(data, first, last))
        elif number in (_VALUE_JSON, _TEXT) and wire == BYTES:
            # NaN and Infinity are bare, or in quotes as older versions write them.
            cell = protowire.text(data, first, min(last, first + _CELL_BYTES)).strip('"')
            cell += "..." if last - first > _CELL_BYTES else ""
        elif (number, wire) == (_NUMBER, FIXED64):
            cell = protowire.double(data, first)
        elif (number, wire) == (_INTEGER, VARINT):
            cell = float(first >> 1 if first % 2 == 0 else -(first >> 1) - 1)
    return "/".join(names), cell


WANDB = Format(
    name="wandb",
    description="W&B run files (.wandb)",
    suffixes=(".wandb",),
    matches=recognises,
    load=read,
    binary=True,
    logs_among=runs_among,
)
"""The format."""
