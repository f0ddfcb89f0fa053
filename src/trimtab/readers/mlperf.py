"""MLPerf submissions: `:::MLLOG` lines, one JSON object each, among whatever else the run prints.

    :::MLLOG {"key": "tracked_stats", "value": {"train_loss": 7.5}, "metadata": {"step": 9}}

Only what brings a step and a loss, or the result of an evaluation, is a record: throughput is
reported for whole blocks, with the step at which the block began. Many submissions count samples
where the name says step.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import Column
from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import STEP_SECONDS
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.formats import Format
from trimtab.readers.json_log import decode_json
from trimtab.readers.log_file import LineFile, Progress
from trimtab.readers.ranks import rows_of_others
from trimtab.readers.table import Table

_MARK = ":::MLLOG "
_RANK = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,5})\]|(\d{1,5}): )")
"""How torchrun and `srun --label` begin a line."""
_BATCH_SIZE = "global_batch_size"
_STEPS = ("step", "step_num", "samples_count")


def _read(path: Path, progress: Progress) -> Table:
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
    """Yield the record that an event is, if it is one."""
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
    suffixes=(),
    matches=lambda head: b":::MLLOG {" in head,
    load=_read,
)
