"""Logs in JSON: one object per line, an array of objects, documents of HF and Megatron-LM, MLPerf.

Objects are decoded without believing them, and nested ones flattened: {"train": {"loss": 2.5}}
becomes the column train/loss. NaN and Infinity may be bare, as Python writes them, or strings; null
is missing. A log that was cut off is read up to the cut.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Column
from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import STEP_SECONDS
from trimtab.core.text import count_sentence
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.folders import first_number, read_start
from trimtab.readers.formats import Format
from trimtab.readers.json_document import (
    JsonRecord,
    document_table,
    flattened,
    holds_series,
    is_run,
)
from trimtab.readers.log_file import LineFile, LogFile, Progress, read_head
from trimtab.readers.runs import OF_FURTHER_RANKS, is_loss, rows_of_others
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.conventions import name_summary, restore_hf_losses, restore_if_hf

OBJECT_CHARS = 4 << 20
"""No record of an array is longer: text that cannot be decoded up to here is damaged, not
incomplete."""

# Every number in a block is a float; int() would refuse one of more than 4,300 digits.
decode_json = json.JSONDecoder(parse_int=float).raw_decode
"""The value at the start of a text, and where it ends; raises ValueError or RecursionError."""

_BETWEEN = re.compile(r"[\s,]*")


def parse_object(line: str) -> JsonRecord | None:
    """Return the object in a line, flattened; None if the line is not one object."""
    try:
        record, end = decode_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or end < len(line):
        return None
    return flattened(record)


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
            count_sentence(
                num_bad,
                f"line{{s}} {{is}} no JSON object and left out (the first: {first_bad})",
            )
        )
    table.note_counts({"line{s} cut off in the middle {is} left out": num_cut})
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
    if _is_document(read_head(path, _SAMPLE_BYTES)[0]):
        file = LogFile(path, progress)
        try:
            document = decode_json(file.read().decode("utf-8-sig", "replace").strip())[0]
        except (ValueError, RecursionError) as error:
            raise UnreadableLog(
                f"{path} cannot be read as JSON ({error}); if it was cut off, get it whole"
            ) from error
        table = document_table(document, path, wanted)
        table.add_note(*file.notes)
        return table
    lacks = "is not a JSON array with objects in it; write [{...}, {...}], one object per record"
    return _read_array(path, progress, wanted, _START, lacks)


def _read_array(
    path: Path, progress: Progress, wanted: Wanted, start: re.Pattern[str], lacks: str
) -> Table:
    """Read the records of an array, or the runs in it; `lacks` is what a file without has to do."""
    array = _Array(LogFile(path, progress), start)
    table = Table()
    runs: list[JsonRecord] = []
    for records in array.records():
        if runs or (not table.num_rows and any(map(is_run, records[:1]))):
            runs += records
        else:
            table.add_records([record for record in records if record])
    if runs:
        return document_table(runs, path, wanted)
    if not table.num_rows:
        raise UnreadableLog(f"{path} {lacks}")
    table.add_note(*array.file.notes)
    table.note_counts({"item{s} of the array {is} no object and left out": array.num_others})
    if not array.closed:
        table.add_note(
            f"The array is cut off or damaged after {table.num_rows} records; what comes after is "
            "left out."
        )
    return table


class _Array:
    """A JSON array, decoded block by block from where a mark ends."""

    def __init__(self, file: LogFile, mark: re.Pattern[str]) -> None:
        self.file = file
        self._mark = mark
        self.closed = False
        """Whether the end of the array was reached."""
        self.num_others = 0
        """Items that are not objects."""

    def records(self) -> Iterator[list[JsonRecord]]:
        """Yield the objects of each block, flattened, up to the first that cannot be decoded."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        text, started = "", False
        for block in self.file.blocks():
            text += decoder.decode(block)
            mark = None if started else self._mark.search(text)
            if mark is not None:
                text, started = text[mark.end() :], True
            if started:
                items, end = _decode_items(text)
                records = [flattened(item) for item in items if isinstance(item, dict)]
                yield records
                self.num_others += len(items) - len(records)
                self.closed = text.startswith("]", end)
                text = text[end:]
            if self.closed or len(text) > OBJECT_CHARS:
                return


def _decode_items(text: str) -> tuple[list[Any], int]:
    """Return the items of an array from its first on, and where the next one would begin."""
    items: list[Any] = []
    end = 0
    while between := _BETWEEN.match(text, end):
        try:
            item, end = decode_json(text, between.end())
        except (ValueError, RecursionError):
            return items, between.end()
        items.append(item)
    return items, end


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
"""The step that a state was written at."""

_HEAD_BYTES = 1 << 12
"""The keys are sorted: `global_step` is within the first 300 bytes of real files."""


def _read_hf(path: Path, progress: Progress, wanted: Wanted) -> Table:
    lacks = "has no log_history with records; give the trainer_state.json of a run that logged"
    table = _read_array(path, progress, wanted, _HISTORY, lacks)
    name_summary(table)
    return table


def _is_hf(head: bytes) -> bool:
    text = head.decode("utf-8-sig", "replace")
    return text.lstrip().startswith("{") and _HISTORY.search(text) is not None


def _hf_states(files: Sequence[Path]) -> list[Path]:
    states = [file for file in files if file.name == "trainer_state.json"]
    reached = {path: first_number(_REACHED, read_start(path, _HEAD_BYTES)) for path in states}
    return sorted(states, key=lambda path: (reached[path], path), reverse=True)


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
_STEPS = ("metadata/step", "metadata/step_num", "metadata/samples_count")


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    file = LineFile(path, progress)
    table = Table()
    ranks: list[int] = []
    batch, num_cut = 0.0, 0
    for lines in file.chunks():
        records: list[JsonRecord] = []
        for line in lines:
            rank = _RANK.match(line)
            for text in line.split(_MARK)[1:]:  # a restart may go on in a line that was cut off
                event = parse_object(text.strip()) or {}
                num_cut += not event
                value = event.get("value")
                if event.get("key") == "global_batch_size" and isinstance(value, float):
                    batch = batch or value
                if record := _record(event):
                    records.append(record)
                    ranks.append(int(rank[1] or rank[2]) if rank else -1)
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
            "line{s} cut off in the middle {is} left out": num_cut,
            OF_FURTHER_RANKS: len(others),
        }
    )
    table.meanings["train_step_time"] = Alias(signal=STEP_SECONDS, name="train_step_time")
    _count_updates(table, batch)
    return table


def _record(event: JsonRecord) -> JsonRecord:
    """Return the values in an event with their step; nothing unless one of them is a result."""
    values = {
        str(event.get("key")) if name == "value" else name.removeprefix("value/"): event[name]
        for name in event
        if name.partition("/")[0] == "value"
    }
    steps = [event[name] for name in _STEPS if name in event]
    is_result = any("loss" in name or name == "eval_accuracy" for name in values)
    return {**values, STEP: steps[0]} if steps and is_result else {}


def _count_updates(table: Table, batch: float) -> None:
    """Count updates where samples were counted."""
    step = table.column(STEP)
    known = step.values[step.finite]
    if batch <= 1 or not known.any() or (known % batch).any():
        return
    table.replace(STEP, Column(step.values / batch, step.present))
    table.add_note(f"Steps are counted in samples; they were divided by the batch of {batch:g}.")


MLPERF = Format(
    name="mlperf",
    description="the text log of an MLPerf submission",
    matches=lambda head: b":::MLLOG {" in head,
    load=_read,
)
