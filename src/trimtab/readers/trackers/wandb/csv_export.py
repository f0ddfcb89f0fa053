"""CSV that W&B exports from a chart: Step, RUN - METRIC, RUN - METRIC__MIN, RUN - METRIC__MAX, ...

For a single run, the names come without `RUN - `. A point may represent many steps: then it is
their mean, and MIN and MAX show the spread.
"""

import re
from collections.abc import Container
from pathlib import Path

import numpy as np

from trimtab.core.signals import LOSS, Quality
from trimtab.readers import csv_log
from trimtab.readers.aliases import Alias, name_columns
from trimtab.readers.formats import Format
from trimtab.readers.log_file import Progress
from trimtab.readers.quoting import quoted
from trimtab.readers.table import Table
from trimtab.readers.trackers.hf_losses import is_by_hf, restore_hf_losses
from trimtab.readers.trackers.runs import StoredRun, choose_run, note_choice

_MIN, _MAX = "__MIN", "__MAX"
_HF_PREFIX = "train/"


def read(path: Path, progress: Progress) -> Table:
    """Read the first run of an export."""
    return _read(path, None, progress)


def read_run(path: Path, run: str, progress: Progress) -> Table:
    """Read one run of an export."""
    return _read(path, run, progress)


def recognises(head: bytes) -> bool:
    """Whether the first line names columns with a minimum and a maximum, as W&B does."""
    first = re.split(rb"[\r\n]", head.lstrip(), maxsplit=1)[0]
    return _MIN.encode() in first and _MAX.encode() in first and csv_log.recognises(head)


def _read(path: Path, run: str | None, progress: Progress) -> Table:
    whole = csv_log.read(path, progress)
    names = dict.fromkeys(name.rpartition(" - ")[0] for name in whole.names if " - " in name)
    runs = [StoredRun(id=name, name=name) for name in names or ("",)]
    chosen = choose_run(path, runs, run)
    table = _only(whole, names, chosen.name)
    note_choice(table, chosen, runs)
    _drop_bounds(table)
    if is_by_hf(table, _HF_PREFIX):
        restore_hf_losses(table, _HF_PREFIX)
    return table


def _only(whole: Table, runs: Container[str], run: str) -> Table:
    """The columns of one run, without its name, and those that all runs share."""
    table = Table()
    table.new_rows(whole.num_rows)
    for note in whole.notes:
        table.add_note(note)
    for name in whole.names:
        owner, _, metric = name.rpartition(" - ")
        if owner not in runs:
            metric = name
        elif owner != run:
            continue
        table.replace(metric, whole.column(name))
    return table


def _drop_bounds(table: Table) -> None:
    """Leave out the bounds that say nothing, and call a mean a mean."""
    loss = name_columns(list(table.recorded)).foreign.get(LOSS)
    for name in table.names:
        if not {name + _MIN, name + _MAX} <= set(table.names):
            continue
        low, high = table.column(name + _MIN), table.column(name + _MAX)
        differ = low.present & high.present & (low.values < high.values)
        if not differ.any():
            table.remove(name + _MIN)
            table.remove(name + _MAX)
        elif name == loss:
            table.meanings[name] = Alias(signal=LOSS, name=name, quality=Quality.WINDOW_MEAN)
            table.add_note(
                f"Values of {quoted(name)} that are means over several steps, as W&B exports long "
                f"runs: {np.count_nonzero(differ)}; an offline .wandb file holds every step."
            )


WANDB_CSV = Format(
    name="wandb-csv",
    description="CSV exported from a chart of W&B",
    suffixes=(),
    matches=recognises,
    load=read,
    load_run=read_run,
)
"""The format."""
