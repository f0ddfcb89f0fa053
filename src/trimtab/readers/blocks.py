"""A table as a run: canonical names, integer steps, attempts, and notes on what was done."""

from pathlib import Path

import numpy as np

from trimtab.core.block import NO_POSITION, Block, BoolArray, Column, IntArray
from trimtab.core.errors import NoUsableLoss
from trimtab.core.run import Run
from trimtab.core.signals import LOSS, Quality
from trimtab.readers.aliases import DATA_POSITION, STEP, Naming, name_columns
from trimtab.readers.quoting import listed, quoted
from trimtab.readers.table import Table

FREE_CELLS = 1 << 26
"""A block may always have this many cells (0.6 GB)."""

CELLS_PER_VALUE = 4
"""Beyond `FREE_CELLS`, how many cells a block may have per recorded value. A few values under each
of a million names must not fill the memory; a log with an evaluation every tenth step stays far
below."""

_AXES = (STEP, DATA_POSITION)
_LARGEST = 2.0**62
_LARGEST_EXACT = 2.0**53


def to_run(table: Table, path: Path, format: str) -> Run:
    """Return the run that a table holds; raises NoUsableLoss if there is no loss in it."""
    recorded = table.recorded
    empty = [name for name in table.names if name not in recorded]
    naming = name_columns(list(recorded), empty=empty, meanings=table.meanings)
    foreign = naming.foreign
    if LOSS not in foreign:
        raise NoUsableLoss(_no_loss(table, path))
    notes = [*table.notes, *naming.notes]
    signals = _affordable(table, naming, notes)
    step, with_step = _steps(table, foreign.get(STEP), notes)
    with_signal, wanted = table.rows_with(signals), table.kept
    rows = wanted & with_step & with_signal
    _note_dropped(with_step[wanted], with_signal[wanted], notes)
    columns = _columns(table, naming, signals, rows)
    if LOSS not in columns:
        raise NoUsableLoss(
            f"{path}: no row with a usable step has a value in {quoted(foreign[LOSS])}; "
            f"the step comes from {quoted(foreign[STEP])}, make sure that it holds numbers"
        )
    block = Block.from_columns(
        columns,
        step=step[rows],
        attempt=_attempts(step[rows], notes),
        data_position=_positions(table, foreign.get(DATA_POSITION))[rows],
        qualities={
            alias.signal: alias.quality
            for alias in naming.aliases.values()
            if alias.quality < Quality.RAW and alias.signal in columns
        },
    )
    kept = {*_AXES, *columns}
    names = {name: column for name, column in foreign.items() if name in kept}
    return Run(block=block, format=format, path=path, names=names, notes=tuple(notes))


def _affordable(table: Table, naming: Naming, notes: list[str]) -> list[str]:
    """The columns that become signals: all of them, unless most of their cells are missing."""
    signals = [name for name, alias in naming.aliases.items() if alias.signal not in _AXES]
    recorded = table.recorded
    limit = max(FREE_CELLS, CELLS_PER_VALUE * sum(recorded.values())) // table.num_rows or 1
    if len(signals) <= limit:
        return signals
    # The loss is never left out: everything else is judged against it.
    signals.sort(key=lambda name: (naming.aliases[name].signal != LOSS, -recorded[name]))
    notes.append(
        f"Columns left out because nearly all of their cells are missing: {len(signals) - limit}."
    )
    return signals[:limit]


def _steps(table: Table, name: str | None, notes: list[str]) -> tuple[IntArray, BoolArray]:
    """The step of each row, and which rows have one."""
    if name is None:
        notes.append("There is no step column: the rows are numbered from 0 instead.")
        return np.arange(table.num_rows), np.ones(table.num_rows, dtype=np.bool_)
    column = table.column(name)
    usable = column.finite & (np.abs(column.values) <= _LARGEST)
    values = np.where(usable, column.values, 0.0)
    whole = np.floor(values)
    fractions = np.count_nonzero(whole != values)
    if fractions:
        notes.append(f"Steps in {quoted(name)} with a fraction, which was cut off: {fractions}.")
    rounded = np.count_nonzero(np.abs(values) > _LARGEST_EXACT)
    if rounded:
        notes.append(f"Steps in {quoted(name)} over 2**53, known only roughly: {rounded}.")
    return whole.astype(np.int64), usable


def _attempts(step: IntArray, notes: list[str]) -> IntArray:
    """The number of each row's attempt: one more whenever the step goes back."""
    attempt = np.zeros(len(step), dtype=np.int64)
    np.cumsum(step[1:] < step[:-1], out=attempt[1:])
    if attempt[-1]:
        notes.append(f"Times that the step goes back, as after a restart: {attempt[-1]}.")
    return attempt


def _positions(table: Table, name: str | None) -> IntArray:
    if name is None:
        return np.full(table.num_rows, NO_POSITION)
    column = table.column(name)
    known = column.finite & (column.values >= 0) & (column.values <= _LARGEST)
    return np.where(known, column.values, NO_POSITION).astype(np.int64)


def _columns(
    table: Table, naming: Naming, signals: list[str], rows: BoolArray
) -> dict[str, Column]:
    """The signals under their canonical names, in these rows, without empty ones."""
    columns: dict[str, Column] = {}
    chosen = slice(None) if rows.all() else rows
    for name in signals:
        alias = naming.aliases[name]
        column = table.column(name)
        values, present = column.values[chosen], column.present[chosen]
        if alias.scale != 1.0:
            values = values * alias.scale
        if present.any():
            complete = present.all()
            columns[alias.signal] = Column.complete(values) if complete else Column(values, present)
    return columns


def _note_dropped(with_step: BoolArray, with_signal: BoolArray, notes: list[str]) -> None:
    without_step = np.count_nonzero(~with_step)
    if without_step:
        notes.append(f"Rows without a usable step, left out: {without_step}.")
    without_signal = np.count_nonzero(with_step & ~with_signal)
    if without_signal:
        notes.append(f"Rows with a step and nothing else, left out: {without_signal}.")


def _no_loss(table: Table, path: Path) -> str:
    for name, alias in name_columns(table.names, meanings=table.meanings).aliases.items():
        if alias.signal == LOSS:
            text = table.first_text(name)
            found = f"the first cell is {quoted(text)}" if text else "all cells are missing"
            return (
                f"{path}: {quoted(name)} is a loss column, but no number was recorded in it "
                f"({found}); write plain numbers, such as 2.5"
            )
    found = listed(table.names) or "none"
    return (
        f"{path}: no column is known to be the training loss (columns: {found}); "
        "if one of them is, rename it to 'loss'"
    )
