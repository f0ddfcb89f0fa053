"""Logs in JSON: one object per line, an array of objects, documents of HF and Megatron-LM, MLPerf.

Objects are decoded without believing them, and nested ones flattened: {"train": {"loss": 2.5}}
becomes the column train/loss. NaN and Infinity may be bare, as Python writes them, or strings; null
is missing. A log that was cut off is read up to the cut.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Column
from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import STEP_SECONDS
from trimtab.core.text import printable
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.cells import parse_number
from trimtab.readers.folders import read_start
from trimtab.readers.formats import Format
from trimtab.readers.log_file import LineFile, LogFile, Progress, read_head
from trimtab.readers.runs import (
    StoredRun,
    choose_run,
    is_loss,
    is_step,
    note_choice,
    rows_of_others,
)
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.conventions import restore_hf_losses, restore_if_hf
from trimtab.readers.trackers.points import Points

NESTED_LEVELS = 16
"""Objects nested deeper hold no metrics; without a limit their names could fill the memory."""

NAME_CHARS = 256
"""A longer name, made by flattening, is not that of a metric."""

OBJECT_CHARS = 4 << 20
"""No record of an array is longer: text that cannot be decoded up to here is damaged, not
incomplete."""

# Every number in a block is a float; int() would refuse one of more than 4,300 digits.
decode_json = json.JSONDecoder(parse_int=float).raw_decode
"""The value at the start of a text, and where it ends; raises ValueError or RecursionError."""

_BETWEEN = re.compile(r"[\s,]*")

JsonRecord = Mapping[str, Any]


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
    return _flattened(record)


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
                    records.append(_flattened(item))
                else:
                    num_others += 1
                continue
        return DecodedItems(records=records, num_others=num_others, end=start, closed=closed)


def _flattened(record: JsonRecord) -> JsonRecord:
    return _flatten(record, "", 0) if dict in map(type, record.values()) else record


def _flatten(record: JsonRecord, prefix: str, level: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix + key
        if len(name) > NAME_CHARS:
            continue
        if not isinstance(value, dict):
            flat[name] = value
        elif level < NESTED_LEVELS:
            flat |= _flatten(value, f"{name}/", level + 1)
    return flat


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
        table = _to_table(_load_document(file, path), path, wanted)
        table.add_note(*file.notes)
        return table
    table = Table()
    runs: list[JsonRecord] = []
    num_others, closed = 0, False
    for items in _array_items(file, _START):
        if runs or (not table.num_rows and any(map(_is_run, items.records[:1]))):
            runs += items.records
        else:
            table.add_records([record for record in items.records if record])
        num_others, closed = num_others + items.num_others, items.closed
    if runs:
        return _to_table(runs, path, wanted)
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


# A JSON document: columns as lists, or as lists of [step, value], of one run or of several
#
# {"step": [1, 2], "loss": [2.5, 2.4]}, {"loss": [[1, 2.5], [2, 2.4]]}, {"loss": {"1": 2.5}},
# {"run_a": {"loss": [2.5, 2.4]}, ...}, [{"name": "run_a", "loss": [2.5, 2.4]}, ...]
# Golden values of Megatron-LM, in older files with a list of values:
# {"lm loss": {"start_step": 1, "end_step": 100, "step_interval": 5, "values": {"1": 10.8, ...}}}

_SAMPLE_BYTES = 1 << 20
_OPENS = re.compile(r'\{\s*(?:\n|"[^"]*"\s*:\s*[\[{])')
_LARGEST = 2.0**62
_NAMES = ("name", "run_name", "run", "run_id", "id", "label", "model", "experiment")
"""Members that name the run that an object holds."""

_PHASES = frozenset({"train", "training", "val", "valid", "validation", "eval", "test", "dev"})


_Series = list[tuple[Any, Any]]
"""Step and value, in the order of logging; the step is None if only the order is known."""


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
    return not text[end:].strip() and not has_records and _holds(document, "")


def _load_document(file: LogFile, path: Path) -> Any:
    try:
        return decode_json(file.read().decode("utf-8-sig", "replace").strip())[0]
    except (ValueError, RecursionError) as error:
        raise UnreadableLog(
            f"{path} cannot be read as JSON ({error}); if it was cut off, get it whole"
        ) from error


def _to_table(document: Any, path: Path, wanted: Wanted) -> Table:
    """Return the run in a document, of several the wanted or the first one."""
    parts = _runs_in(document)
    runs = [StoredRun(id=name, name=name) for name in parts]
    run = choose_run(path, runs, wanted.run) if len(runs) > 1 else runs[0]
    part = parts[run.id]
    table = Table()
    if isinstance(part, list):
        table.add_records([_flattened(record) for record in part if isinstance(record, dict)])
    else:
        table = _join(_series_in(part))
    if not table.num_rows:
        raise UnreadableLog(
            f"{path} holds no series of numbers; write one object per line, as in "
            '{"step": 1, "loss": 2.5}'
        )
    if len(runs) > 1:
        note_choice(table, run, runs)
    return table


def _runs_in(document: Any, level: int = 0) -> dict[str, Any]:
    """Return the parts of a document that are a run each, by name; the whole of it if it is one."""
    if isinstance(document, list):
        items = [item for item in document if isinstance(item, dict)]
        parts = {_run_name(item, number): item for number, item in enumerate(items, start=1)}
    else:
        parts = dict(_members(document))
    runs = {
        name: part for name, part in parts.items() if not _is_series(part) and _holds(part, "loss")
    }
    if len(runs) == 1 and not any(map(_is_series, parts.values())) and level < NESTED_LEVELS:
        return _runs_in(next(iter(runs.values())), level + 1)
    if len(runs) < 2 or _PHASES & {name.lower() for name in runs}:
        return {"": document}
    return runs


def _run_name(item: JsonRecord, number: int) -> str:
    found = [item[name] for name in _NAMES if isinstance(item.get(name), str | float)]
    label = found[0] if found else float(number)
    return printable(label if isinstance(label, str) else f"{label:g}")


def _holds(part: Any, word: str, level: int = 0) -> bool:
    """Return whether a part holds a series, or records, with this word in a name."""
    if level > NESTED_LEVELS:
        return False
    if isinstance(part, list):
        first = part[0] if part else None
        return isinstance(first, dict) and (
            any(word in name.lower() for name in _flattened(first)) or _is_run(first)
        )
    return any(
        word in name.lower() if _is_series(value) else _holds(value, word, level + 1)
        for name, value in _members(part).items()
    )


def _is_run(record: JsonRecord) -> bool:
    """Return whether an object holds a series of losses, and not those of one step."""
    at_step = any(isinstance(record[name], float) and is_step(name) for name in record)
    has_series = any("loss" in name.lower() and _is_series(record[name]) for name in record)
    return has_series and not at_step


def _is_series(value: Any) -> bool:
    """Return whether a value is a list of numbers or of steps with theirs, or a table of steps."""
    if isinstance(value, dict):
        return "step_interval" in value or (
            len(value) > 1 and all(_finite(key) is not None for key in value)
        )
    if not isinstance(value, list) or not value:
        return False
    kinds = {len(item) if isinstance(item, list) else type(item) for item in value}
    return kinds in ({2}, {3}) or (float in kinds and kinds <= {float, str, type(None)})


def _series_in(part: Any, prefix: str = "", level: int = 0) -> dict[str, _Series]:
    found: dict[str, _Series] = {}
    for key, value in _members(part).items():
        if _is_series(value):
            found[prefix + key] = _series(value)
        elif level < NESTED_LEVELS and len(prefix + key) < NAME_CHARS:
            found |= _series_in(value, f"{prefix}{key}/", level + 1)
    return found


def _series(value: Any) -> _Series:
    if isinstance(value, list):
        # Of a list, the last two are step and value: TensorBoard puts the time before them.
        return [(item[-2], item[-1]) if isinstance(item, list) else (None, item) for item in value]
    if "step_interval" not in value:
        return list(value.items())
    values = value.get("values")
    start, interval = _finite(value.get("start_step")), _finite(value["step_interval"])
    if isinstance(values, list) and start is not None and interval is not None:
        values = {start + n * interval: cell for n, cell in enumerate(values)}
    # In golden values, a word means that the step was not recorded.
    return [(step, cell) for step, cell in _members(values).items() if isinstance(cell, float)]


def _join(series: Mapping[str, _Series]) -> Table:
    """Return the rows of some series: by their steps, else by their order."""
    points = Points()
    lists: dict[str, list[Any]] = {}
    for name, pairs in series.items():
        for step, value in pairs:
            at, number = _finite(step), _number(value)
            if at is not None and abs(at) < _LARGEST and number is not None:
                points.add(name, int(at), number, 0.0)
        if pairs and pairs[0][0] is None:
            lists[name] = [value for _, value in pairs]
    if len(points):
        table = points.to_table()
        table.note_counts({"Lists without steps, left out": len(lists)})
        return table
    # Lists of other lengths, such as that of the evaluations, have other steps.
    lengths = [len(lists[name]) for name in sorted(lists, key=is_loss, reverse=True)]
    table = Table()
    rows = table.new_rows(lengths[0] if lengths else 0)
    for name, values in lists.items():
        if len(values) == len(rows):
            table.add(name, rows, values)
    others = sum(length != len(rows) for length in lengths)
    table.note_counts({"Lists of a different length than the loss, left out": others})
    return table


def _finite(cell: object) -> float | None:
    number = _number(cell)
    return number if number is not None and np.isfinite(number) else None


def _number(cell: object) -> float | None:
    try:
        return parse_number(cell)
    except ValueError:
        return None


def _members(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


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
    # The last record has the mean over the whole run, which is not the loss of any step.
    table.meanings["train_loss"] = Alias(signal="train_loss", name="train_loss")
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
