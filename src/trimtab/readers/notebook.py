"""Jupyter notebooks: what their cells printed, read as the text that it is.

HF's Trainer draws a table in HTML; its cells become columns.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trimtab.core.errors import UnreadableLog
from trimtab.readers.formats import Format
from trimtab.readers.general.reader import read_lines
from trimtab.readers.log_file import LogFile, Progress
from trimtab.readers.table import Table, Wanted

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
    """Yield the lines that the cells printed, in their order."""
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
    load=lambda path, progress: _read(path, progress, Wanted()),
    load_wanted=_read,
)
