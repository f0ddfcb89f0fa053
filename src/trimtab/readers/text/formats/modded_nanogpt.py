"""modded-nanogpt and parameter-golf: names and values joined by colons.

    step:12/6200 train_loss:6.6519 train_time:428ms step_avg:213.66ms

The loss is that of one rank. `train_time` is a clock that runs only while the model trains, and is
set back after the warm-up: the time of a step is the way between two records.
"""

import re
from collections.abc import Iterator

import numpy as np

from trimtab.core.block import Column
from trimtab.core.signals import LOSS, STEP_SECONDS, Quality
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import NUMBER, Grammar, Line
from trimtab.readers.text.parser import text_format
from trimtab.readers.text.windows import mark_window_means

STEP_TIME = "step time (s), from train_time"

_FIELD = re.compile(rf"(\w{{1,99}}):({NUMBER})(ms|s)?")
_SECONDS = {"ms": 0.001, "s": 1.0}


def finish(table: Table) -> None:
    """Work the time of each step out of the clock."""
    loss = table.column("train_loss")
    for unit, seconds in _SECONDS.items():
        clock = table.column(f"train_time ({unit})")
        rows = np.flatnonzero(loss.present & clock.finite)
        if not len(rows):
            continue
        steps = np.diff(table.column(STEP).values[rows])
        times = np.diff(clock.values[rows])
        known = (steps > 0) & (times > 0)
        column = Column.missing(table.num_rows)
        column.values[rows[1:][known]] = times[known] * seconds / steps[known]
        column.present[rows[1:][known]] = True
        table.replace(STEP_TIME, column)
    mark_window_means(table, STEP_TIME)


def _fields(rest: str) -> Iterator[tuple[str, str]]:
    for name, value, unit in _FIELD.findall(rest):
        yield f"{name} ({unit})" if unit else name, value


MODDED_NANOGPT = text_format(
    Grammar(
        name="modded-nanogpt",
        trainer="modded-nanogpt",
        sign=re.compile(r"step:\d+/\d+ (?:train_loss|val_loss):"),
        lines=(
            Line(
                mark="step:",
                pattern=re.compile(r"step:(?P<step>\d+)/\d+ (?=train_loss:|val_loss:)"),
                fields=_fields,
            ),
        ),
        meanings=(
            Alias(signal=LOSS, name="train_loss", remark="of one rank, noisier than the mean"),
            Alias(signal=STEP_SECONDS, name=STEP_TIME, quality=Quality.RAW),
        ),
        finish=finish,
    )
)
"""The format."""
