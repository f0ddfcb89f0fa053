"""Logs in JSON: one object per line, an array of objects, documents of HF and Megatron-LM, MLPerf.

Objects are decoded without believing them, and nested ones flattened: {"train": {"loss": 2.5}}
becomes the column train/loss. NaN and Infinity may be bare, as Python writes them, or strings; null
is missing. A log that was cut off is read up to the cut.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Column
from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import STEP_SECONDS
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.folders import read_start
from trimtab.readers.formats import Format
from trimtab.readers.json_document import (
    JsonRecord,
    document_table,
    flattened,
    holds_series,
    is_run,
)
from trimtab.readers.log_file import LineFile, LogFile, Progress, read_head
from trimtab.readers.runs import is_loss, rows_of_others
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.conventions import name_summary, restore_hf_losses, restore_if_hf

OBJECT_CHARS = 4 << 20
"""No record of an array is longer: text that cannot be decoded up to here is damaged, not
incomplete."""

# Every number in a block is a float; int() would refuse one of more than 4,300 digits.
decode_json = json.JSONDecoder(parse_int=float).raw_decode
"""The value at the start of a text, and where it ends; raises ValueError or RecursionError."""

_BETWEEN = re.compile(r"[\s,]*")

# Objects, wherever they are


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedItems:
    """The items of a JSON array, as far as they could be decoded."""

    records: list[JsonRecord]
    """The objects among them, flattened."""
    num_others: int
    """Items that are not objects."""
    end: int
    """Where the first item that could not be decoded begins, or the array ends."""
    closed: bool
    """Whether the end of the array was reached."""


def parse_object(line: str) -> JsonRecord | None:
    """Return the object in a line, flattened; None if the line is not one object."""
    try:
        record, end = decode_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or end < len(line):
        return None
    return flattened(record)


def decode_items(text: str, start: int) -> DecodedItems:
    """Decode the items of an array from this index on, after its opening bracket."""
    records: list[JsonRecord] = []
    num_others = 0
    while True:
        between = _BETWEEN.match(text, start)
        start = between.end() if between else start
        closed = text.startswith("]", start)
        if not closed:
            try:
                item, start = decode_json(text, start)
            except (ValueError, RecursionError):
                pass
            else:
                if isinstance(item, dict):
                    records.append(flattened(item))
                else:
                    num_others += 1
                continue
        return DecodedItems(records=records, num_others=num_others, end=start, closed=closed)


# JSON lines


def _read_lines(path: Path, progress: Progress, wanted: Wanted) -> Table:
    file = LineFile(path, progress)
    table = Table()
    num_lines = num_bad = num_cut = 0
    first_bad = ""
    for lines in file.chunks():
        records: list[JsonRecord] = []
        for line in map(str.strip, lines):
            num_lines += 1
            record = parse_object(line) if line else {}
            if record:
                records.append(record)
            elif record is None and file.unfinished:
                num_cut += 1
            elif record is None:
                num_bad += 1
                first_bad = first_bad or f"line {num_lines}, {line[:60]!r}"
        table.add_records(records)
    if not table.num_rows:
        found = f"the first is {first_bad}" if num_bad else "there are no lines"
        raise UnreadableLog(
            f"{path}: no line is a JSON object with anything in it ({found}); "
            "write one object per line"
        )
    table.add_note(*file.notes)
    if num_bad:
        table.add_note(
            f"Lines that are not JSON objects, skipped: {num_bad} (the first is {first_bad})."
        )
    table.note_counts({"Last line cut off in the middle, left out": num_cut})
    return table


JSONL = Format(
    name="jsonl",
    description="JSON lines, one object per line",
    suffixes=(".jsonl", ".ndjson", ".json"),
    matches=lambda head: head.decode("utf-8-sig", "replace").lstrip().startswith("{"),
    load=_read_lines,
)


# A JSON array, as `json.dump(history, file)` writes it; streamed, so its size does not matter

_START = re.compile(r"\A\s*\[")
_ARRAY_MARK = re.compile(r'\s*\[\s*(?:\{\s*["}]|\])')


def _read_json(path: Path, progress: Progress, wanted: Wanted) -> Table:
    file = LogFile(path, progress)
    if _is_document(read_head(path, _SAMPLE_BYTES)[0]):
        table = document_table(_load_document(file, path), path, wanted)
        table.add_note(*file.notes)
        return table
    table = Table()
    runs: list[JsonRecord] = []
    num_others, closed = 0, False
    for items in _array_items(file, _START):
        if runs or (not table.num_rows and any(map(is_run, items.records[:1]))):
            runs += items.records
        else:
            table.add_records([record for record in items.records if record])
        num_others, closed = num_others + items.num_others, items.closed
    if runs:
        return document_table(runs, path, wanted)
    if not table.num_rows:
        raise UnreadableLog(
            f"{path} is not a JSON array with objects in it; write [{{...}}, {{...}}], "
            "one object per record"
        )
    table.add_note(*file.notes)
    table.note_counts({"Items of the array that are not objects, left out": num_others})
    if not closed:
        table.add_note(
            f"The array is cut off or damaged after {table.num_rows} records; what comes after is "
            "left out."
        )
    return table


def _array_items(file: LogFile, mark: re.Pattern[str]) -> Iterator[DecodedItems]:
    """Yield the items of the array that begins at a mark, block by block."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    text, started = "", False
    for block in file.blocks():
        text += decoder.decode(block)
        start = None if started else mark.search(text)
        if start is not None:
            text, started = text[start.end() :], True
        if started:
            items = decode_items(text, 0)
            yield items
            text = text[items.end :]
            if items.closed:
                return
        if len(text) > OBJECT_CHARS:
            return


_SAMPLE_BYTES = 1 << 20
_OPENS = re.compile(r'\{\s*(?:\n|"[^"]*"\s*:\s*[\[{])')


def _is_document(head: bytes) -> bool:
    """Return whether these bytes begin one object that holds series, not a line of objects."""
    text = head.decode("utf-8-sig", "replace").lstrip()
    if not text.startswith("{") or _HISTORY.search(text):
        return False
    try:
        document, end = decode_json(text)
    except (ValueError, RecursionError):
        return _OPENS.match(text) is not None or len(text) >= _SAMPLE_BYTES // 2
    has_records = any(is_loss(name) and isinstance(document[name], float) for name in document)
    return not text[end:].strip() and not has_records and holds_series(document, "")


def _load_document(file: LogFile, path: Path) -> Any:
    try:
        return decode_json(file.read().decode("utf-8-sig", "replace").strip())[0]
    except (ValueError, RecursionError) as error:
        raise UnreadableLog(
            f"{path} cannot be read as JSON ({error}); if it was cut off, get it whole"
        ) from error


JSON = Format(
    name="json",
    description="a JSON array, one object per record, or a document with lists",
    matches=lambda head: (
        _ARRAY_MARK.match(head.decode("utf-8-sig", "replace")) is not None or _is_document(head)
    ),
    load=_read_json,
    finish=restore_if_hf,
)


# HF's trainer_state.json: a document in each checkpoint, with everything logged so far

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_REACHED = re.compile(rb'"global_step"\s*:\s*(\d{1,18})\b')

_HEAD_BYTES = 1 << 12
"""The keys are sorted: `global_step` is within the first 300 bytes of real files."""


def _read_hf(path: Path, progress: Progress, wanted: Wanted) -> Table:
    file = LogFile(path, progress)
    table = Table()
    items: DecodedItems | None = None
    for items in _array_items(file, _HISTORY):
        table.add_records(items.records)
    if items is None:
        raise UnreadableLog(f"{path} has no log_history; give a trainer_state.json of HF's Trainer")
    if not table.num_rows:
        raise UnreadableLog(f"{path} has an empty log_history; check that the run logged anything")
    if not items.closed:
        table.add_note("log_history is cut off or damaged; everything before that was read.")
    table.add_note(*file.notes)
    name_summary(table)
    return table


def _is_hf(head: bytes) -> bool:
    text = head.decode("utf-8-sig", "replace")
    return text.lstrip().startswith("{") and _HISTORY.search(text) is not None


def _hf_states(files: Sequence[Path]) -> list[Path]:
    states = [file for file in files if file.name == "trainer_state.json"]
    return sorted(states, key=lambda path: (_reached(path), str(path)), reverse=True)


def _reached(path: Path) -> int:
    """Return the step that a trainer state was written at; -1 if it does not say."""
    found = _REACHED.search(read_start(path, _HEAD_BYTES))
    return int(found[1]) if found else -1


HF = Format(
    name="hf",
    description="trainer_state.json of HF's Trainer",
    matches=_is_hf,
    load=_read_hf,
    finish=restore_hf_losses,
    logs_among=_hf_states,
)


# MLPerf submissions: `:::MLLOG` lines, one JSON object each, among whatever else the run prints
#
#     :::MLLOG {"key": "tracked_stats", "value": {"train_loss": 7.5}, "metadata": {"step": 9}}
#
# Only what brings a step and a loss, or the result of an evaluation, is a record: throughput is
# reported for whole blocks, with the step at which the block began. Many submissions count samples
# where the name says step.

_MARK = ":::MLLOG "
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,5})\]|(\d{1,5}): )")
"""How torchrun and `srun --label` begin a line."""
_BATCH_SIZE = "global_batch_size"
_STEPS = ("step", "step_num", "samples_count")


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    file = LineFile(path, progress)
    table = Table()
    ranks: list[int] = []
    num_cut = 0
    batch: float | None = None
    for lines in file.chunks():
        records: list[dict[str, Any]] = []
        for line in lines:
            rank, before = _RANK.match(line), len(records)
            for part in line.split(_MARK)[1:]:  # a restart may go on in a line that was cut off
                event = _event(part)
                num_cut += event is None
                if event is None:
                    continue
                key, value = event.get("key"), event.get("value")
                if key == _BATCH_SIZE and isinstance(value, float):
                    batch = batch or value
                records += _record(event)
            ranks += [int(rank[1] or rank[2]) if rank else -1] * (len(records) - before)
        table.add_records(records)
    if not table.num_rows:
        raise UnreadableLog(
            f"{path} holds no record as an MLPerf submission prints them; give the output of the "
            "rank that prints, or another format"
        )
    table.add_note(*file.notes)
    others = rows_of_others(np.array(ranks))
    table.leave_out(others)
    table.note_counts(
        {
            "Lines cut off in the middle, left out": num_cut,
            "Records of further ranks, left out": len(others),
        }
    )
    table.meanings["train_step_time"] = Alias(signal=STEP_SECONDS, name="train_step_time")
    _count_updates(table, batch)
    return table


def _event(text: str) -> dict[str, Any] | None:
    try:
        event, _ = decode_json(text)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _record(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    metadata, key, value = event.get("metadata"), event.get("key"), event.get("value")
    if not isinstance(metadata, dict) or not isinstance(key, str):
        return
    values: dict[str, Any] = value if isinstance(value, dict) else {key: value}
    steps = [metadata[name] for name in _STEPS if name in metadata]
    if steps and any("loss" in name or name == "eval_accuracy" for name in values):
        yield {**values, STEP: steps[0]}


def _count_updates(table: Table, batch: float | None) -> None:
    """Count updates where samples were counted."""
    step = table.column(STEP)
    known = step.values[step.finite]
    if batch is None or batch <= 1 or not known.any() or (known % batch).any():
        return
    table.replace(STEP, Column(step.values / batch, step.present))
    table.add_note(f"Steps are counted in samples; they were divided by the batch of {batch:g}.")


MLPERF = Format(
    name="mlperf",
    description="the text log of an MLPerf submission",
    matches=lambda head: b":::MLLOG {" in head,
    load=_read,
)
