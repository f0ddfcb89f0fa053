"""MLPerf: `:::MLLOG` lines, one JSON object each, among whatever else the run prints.

    :::MLLOG {"key": "tracked_stats", "value": {"reduced_train_loss": 7.5}, "metadata": {"step": 9}}

Only what brings a step and a loss, or the result of an evaluation, is a record: throughput is
reported for whole blocks, with the step at which the block began. Many submissions count samples
where the name says step.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from trimtab.core.block import Column
from trimtab.core.signals import STEP_SECONDS
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import Grammar, Line, Place
from trimtab.readers.text.parser import text_format

BATCH_SIZE = "global_batch_size"

_STEPS = ("step", "step_num", "samples_count")
_decode = json.JSONDecoder(parse_int=float).raw_decode


def finish(table: Table) -> None:
    """Count updates where samples were counted."""
    batch, step = table.column(BATCH_SIZE), table.column(STEP)
    size = batch.values[batch.finite][:1]
    known = step.values[step.finite]
    if not len(size) or size[0] <= 1 or not known.any() or (known % size[0]).any():
        return
    table.replace(STEP, Column(step.values / size[0], step.present))
    table.add_note(f"Steps are counted in samples; they were divided by the batch of {size[0]:g}.")


def _fields(rest: str) -> Iterator[tuple[str, object]]:
    try:
        event, _ = _decode(rest)
    except (ValueError, RecursionError):
        return
    metadata, key, value = event.get("metadata"), event.get("key"), event.get("value")
    if not isinstance(metadata, dict) or not isinstance(key, str):
        return
    values: dict[str, Any] = value if isinstance(value, dict) else {key: value}
    steps = [metadata[name] for name in _STEPS if name in metadata]
    if steps and any("loss" in name or name == "eval_accuracy" for name in values):
        yield STEP, steps[0]
        yield from values.items()


MLPERF = text_format(
    Grammar(
        name="mlperf",
        trainer="an MLPerf submission",
        sign=re.compile(r":::MLLOG \{"),
        lines=(
            Line(
                mark='"global_batch_size"',
                pattern=re.compile(
                    rf':::MLLOG .*"key": "{BATCH_SIZE}", "value": (?P<{BATCH_SIZE}>\d+)'
                ),
                place=Place.BELOW,
            ),
            Line(mark=":::MLLOG ", pattern=re.compile(r":::MLLOG (?=\{)"), fields=_fields),
        ),
        meanings=(Alias(signal=STEP_SECONDS, name="train_step_time"),),
        finish=finish,
    )
)
"""The format."""
