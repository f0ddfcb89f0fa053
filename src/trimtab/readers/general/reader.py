"""The general reader: a text log of any trainer, understood from what it prints."""

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import CLOCKS, EVAL_LOSS, LOSS, LOSS_SCALE, STEP_SECONDS, Quality
from trimtab.core.text import counted
from trimtab.readers.aliases import STEP, Alias, alias_table
from trimtab.readers.cells import quoted, quoted_names
from trimtab.readers.folders import newest_first
from trimtab.readers.formats import Format
from trimtab.readers.general import roles, trainers
from trimtab.readers.general.choice import Unclear
from trimtab.readers.general.lines import is_whole
from trimtab.readers.general.records import Records, find_records
from trimtab.readers.general.shapes import Overflow, Shape, ShapeCollector
from trimtab.readers.log_file import LineFile, LogFile, Progress
from trimtab.readers.table import Table, Wanted
from trimtab.readers.trackers.conventions import restore_if_hf

_PRINTED = (".log", ".out", ".txt")
"""What the output of a run is redirected into."""


def read_text(path: Path, progress: Progress, wanted: Wanted) -> Table:
    """Read a text log; raises UnreadableLog if its records cannot be told apart."""
    file = LineFile(path, progress)
    table = read_lines(_whole_lines(file), path, wanted)
    table.add_note(*file.notes)
    table.note_counts({"line{s} cut off in the middle {is} left out": int(file.unfinished)})
    return table


def read_lines(chunks: Iterable[list[str]], path: Path, wanted: Wanted) -> Table:
    """Read lines of text; raises UnreadableLog if the records in them cannot be told apart."""
    collector = ShapeCollector((wanted.loss, wanted.step))
    for lines in chunks:
        if any("#015" in line for line in lines):  # how rsyslog writes a carriage return
            lines = [part for line in lines for part in line.split("#015")]
        collector.add_lines(lines)
    shapes = [shape for shape in collector.shapes.values() if shape.lines]
    are_decimal = any(shape.has_decimal_commas and len(shape.lines) > 1 for shape in shapes)
    for shape in shapes:
        shape.settle_commas(are_decimal=are_decimal)
        shape.settle_totals()
    stand_in = None if wanted.loss else trainers.stand_in_for_loss(shapes)
    with np.errstate(all="ignore"):  # a log may hold numbers of any size
        try:
            records = find_records(
                shapes, collector.phases, loss=wanted.loss or stand_in, step=wanted.step
            )
        except Unclear as error:
            raise UnreadableLog(f"{path} as text: {error}{_tried(shapes, wanted)}") from None
        table = _to_table(records, stand_in)
        _add_overflows(table, records, collector.overflows)
        trainers.correct(table, records.units)
        restore_if_hf(table)
    table.note_counts(
        {
            "line{s} cut off in the middle {is} left out": collector.num_cut,
            "line{s} too long for a record {is} left out": collector.num_long,
        }
    )
    return table


def _add_overflows(table: Table, records: Records, overflows: Sequence[Overflow]) -> None:
    """Count the overflows before each record, and add the loss scale that they lead to."""
    rows = np.sort(records.columns[records.loss][0])
    counts: dict[int, int] = {}
    scales: dict[int, float] = {}
    for one in overflows:
        place = int(np.searchsorted(records.lines[rows], one.line))
        if place < len(rows) and (one.rank == records.rank or -1 in (one.rank, records.rank)):
            row = int(rows[place])
            counts[row] = counts.get(row, 0) + 1
            if np.isfinite(one.scale):
                scales.setdefault(row, one.scale)
    if any(roles.signal_of(name) == LOSS_SCALE for name in table.recorded):
        scales = {}
    for name, values in (("n_overflow", counts), (LOSS_SCALE, scales)):
        if values and name not in table.recorded:
            table.add(name, np.array(list(values)), np.array(list(values.values()), dtype=float))


def _whole_lines(file: LineFile) -> Iterator[list[str]]:
    """Yield the lines without a last one that may be half of one."""
    before: list[str] = []
    for lines in file.chunks():
        file.unfinished = file.unfinished and not is_whole(lines[0], before)
        if not file.unfinished or not before:
            yield lines
        before = [*before, *lines[-1_000:]][-1_000:]  # one of them is like it


def _tried(shapes: list[Shape], wanted: Wanted) -> str:
    """Say what would help, and show the line that came closest with the names in it."""
    if not shapes:
        return "; no line has a number with a name"
    closest = max(
        shapes,
        key=lambda one: (sum(roles.loss_class(name) > 0 for name in one.names), len(one.lines)),
    )
    found = f"the closest line: {quoted(closest.sample.strip())}, {len(closest.lines)} like it"
    hint = f"; --loss {wanted.loss} is not in it" if wanted.loss else "; name the loss with --loss"
    return f"{hint}\n  {found}; its columns: {quoted_names(closest.names)}"


def _to_table(records: Records, stand_in: str | None) -> Table:
    table = Table()
    index = table.new_rows(len(records.lines))
    for name, (rows, values) in records.columns.items():
        table.add(name, index[rows], values)
    table.meanings = _meanings(records)
    for name in (STEP, LOSS):
        if name not in (records.step, records.loss):
            table.rename(name, f"{name} (other)")  # not to be taken for the signal of its name
    step = f"step from {quoted(records.step)}" if records.step else "no step"
    count = counted(len(records.columns[records.loss][0]), "record")
    table.add_note(
        f"Read as: {step}, loss from {quoted(records.loss)}{_kind(records.loss)}, "
        f"{count}; --step and --loss correct this.",
        *records.notes,
    )
    if stand_in is not None:
        del table.meanings[records.loss]
    return table


def _kind(loss: str) -> str:
    if roles.says(loss, "policy"):
        return " (policy loss)"
    return " (a running mean)" if roles.says(loss, "smoothed") else ""


def _meanings(records: Records) -> dict[str, Alias]:
    """Return what the columns mean where the alias table does not know it, or is wrong here."""
    quality = Quality.SMOOTHED if roles.says(records.loss, "smoothed") else Quality.RAW
    found = {records.loss: Alias(signal=LOSS, name=records.loss, quality=quality)}
    if records.step is not None:
        found[records.step] = Alias(signal=STEP, name=records.step)
    claims = {name: alias_table().claim(name) for name in records.columns if name not in found}
    taken = {claim.alias.signal for claim in claims.values() if claim.known}
    for name, claim in claims.items():
        unit, values = records.units.get(name, ""), records.columns[name][1]
        signal, scale = None if unit else roles.signal_of(name), 1.0
        if name in records.evaluations or roles.is_evaluation_loss(name):
            signal = EVAL_LOSS
        elif name == "scale" and not roles.is_loss_scale(values):
            signal = None
        elif signal is None:
            scale = roles.step_seconds_scale(name, unit, values) or 0.0
            signal = STEP_SECONDS if scale else None
        is_list = f"{name}[1]" in records.columns
        if claim.known and (is_list or (unit and claim.alias.signal not in CLOCKS)):
            found[name] = Alias(signal=f"{name} (other)", name=name)
        elif claim.alias.signal in (LOSS, STEP):
            found[name] = Alias(signal=name, name=name)
        elif not claim.known and signal and signal not in taken:
            found[name] = Alias(signal=signal, name=name, scale=scale)
            taken.add(signal)
    return found


GENERAL = Format(
    name="text",
    description="text of any trainer, with names beside its numbers",
    # It matches no content: it is tried when nothing else reads the log.
    load=read_text,
    logs_among=lambda files: newest_first([f for f in files if f.suffix.lower() in _PRINTED]),
)

# Jupyter notebooks: what their cells printed, and the cells of tables that HF's Trainer draws

_CELL_END = re.compile(r"</t[dh]>\s*")
_ROW_END = re.compile(r"</tr>\s*")
_TAG = re.compile(r"<[^>]{0,1000}>")


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    file = LogFile(path, progress)
    try:
        document = json.loads(file.read().decode("utf-8-sig", "replace"), parse_int=float)
    except (ValueError, RecursionError) as error:
        raise UnreadableLog(f"{path} cannot be read as a notebook ({error})") from error
    table = read_lines([list(_lines(document))], path, wanted)
    table.add_note(*file.notes)
    return table


def _lines(document: Any) -> Iterator[str]:
    for cell in _items(document, "cells"):
        for output in _items(cell, "outputs"):
            data = output.get("data") if isinstance(output.get("data"), dict) else {}
            tables = _text(data.get("text/html"))
            printed = _text(output.get("text")) or _text(data.get("text/plain"))
            text = _rows(tables) if "<table" in tables else printed
            yield from text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _rows(text: str) -> str:
    text = _ROW_END.sub("\n", _CELL_END.sub("\t", text.replace("\n", " ")))
    lines = (line.strip(" ").removesuffix("\t") for line in _TAG.sub("", text).split("\n"))
    return "\n".join(html.unescape(line) for line in lines)


def _items(value: Any, name: str) -> list[Any]:
    items = value.get(name) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


NOTEBOOK = Format(
    name="notebook",
    description="the output of a Jupyter notebook",
    suffixes=(".ipynb",),
    matches=lambda head: head.lstrip()[:1] == b"{" and b'"cell_type"' in head,
    load=_read,
)
