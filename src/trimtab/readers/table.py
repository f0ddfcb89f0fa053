"""Table: the named columns of a log, collected chunk by chunk, and how they become a run.

Every format fills a table with cells under the names in the log. What the names mean, which rows
are records and where the run was restarted is decided afterwards by `to_run`, in the same way for
all formats.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trimtab.core.block import NO_POSITION, Block, BoolArray, Column, FloatArray, IntArray
from trimtab.core.errors import NoUsableLoss, UnreadableLog
from trimtab.core.run import Run
from trimtab.core.signals import LOSS, LOSS_SCALE, Quality
from trimtab.core.text import count_sentence, printable
from trimtab.readers.aliases import DATA_POSITION, STEP, Alias, Naming, fold, name_columns, words_of
from trimtab.readers.cells import quoted, quoted_names, to_labels, to_numbers
from trimtab.readers.runs import (
    JOINED,
    LABEL_COLUMNS,
    Labels,
    is_step,
    repeated_by_others,
    separate,
)

MIN_WORDS, MAX_WORDS = 3, 0.1
"""Steps that are words: as many, and as large a share of the rows, are no stray lines."""

MIN_STEPS, BACKWARDS = 8, 0.25
"""Steps, and share of them that go back, from which on there is no order in them. A run that is
restarted repeats steps; these come once each."""

MAX_COLUMNS = 10_000
"""More names than this are data, not metrics: the norms of every tensor of a 70B model make some
3,000."""

FREE_CELLS = 1 << 26
"""A block may always have this many cells (0.6 GB)."""

CELLS_PER_VALUE = 4
"""Beyond `FREE_CELLS`, how many cells a block may have per recorded value. A few values under each
of a million names must not fill the memory; a log with an evaluation every tenth step stays far
below."""

_AXES = (STEP, DATA_POSITION)
_UNSCALED = 1.0
_LARGEST = 2.0**62
_LARGEST_EXACT = 2.0**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user says of a log; None leaves it open."""

    run: str | None = None
    """Name or id, in a file that holds several."""
    loss: str | None = None
    """The name of this column in the log."""
    step: str | None = None


@dataclass(slots=True)
class _Cells:
    """What was recorded in one column so far."""

    rows: list[IntArray] = field(default_factory=list)
    values: list[FloatArray] = field(default_factory=list)
    num_recorded: int = 0
    num_texts: int = 0
    first_text: str = ""
    codes: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    """Rows and, for each, the number of its label."""
    labels: dict[str, int] = field(default_factory=dict)


class Table:
    """Named columns of cells; a cell that was never added is missing."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.meanings: dict[str, Alias] = {}
        """What the format knows about its columns, by name; overrides the alias table."""
        self.is_one_run = False
        """Whether the run was chosen among those of the file."""
        self._left_out: list[IntArray] = []
        self._columns: dict[str, _Cells] = {}
        self._labelled: set[str] = set()
        self._notes: list[str] = []
        self._too_many_columns = False

    def new_rows(self, number: int) -> IntArray:
        first = self.num_rows
        self.num_rows += number
        return np.arange(first, self.num_rows)

    def add(self, name: str, rows: IntArray, cells: Sequence[object] | FloatArray) -> None:
        """Record the cells of a column in these rows; without cells, the column merely exists."""
        name = printable(name)
        if name not in self._columns and len(self._columns) >= MAX_COLUMNS:
            self._too_many_columns = True
            return
        if name not in self._columns and fold(name) in LABEL_COLUMNS:
            self._labelled.add(name)
        column = self._columns.setdefault(name, _Cells())
        numbers = to_numbers(cells)
        if len(numbers.values):
            # Columns without a gap share one array of rows: it costs 8 bytes a row, not a cell.
            column.rows.append(rows if numbers.present is None else rows[numbers.present])
            column.values.append(numbers.values)
        if len(rows) and name in self._labelled:
            column.codes.append((rows, to_labels(cells, column.labels)))
        column.num_recorded += len(numbers.values)
        column.num_texts += numbers.num_texts
        column.first_text = column.first_text or numbers.first_text

    def add_records(self, records: Sequence[Mapping[str, object]]) -> None:
        """Add one row per record; what a record does not name is missing in its row."""
        columns: dict[str, tuple[list[int], list[object]]] = {}
        for row, record in enumerate(records):
            for name, value in record.items():
                rows, cells = columns.get(name) or columns.setdefault(name, ([], []))
                rows.append(row)
                cells.append(value)
        index = self.new_rows(len(records))
        for name, (rows, cells) in columns.items():
            self.add(name, index if len(rows) == len(records) else index[rows], cells)

    def replace(self, name: str, column: Column) -> None:
        cells = self._columns[name] = _Cells(num_recorded=int(column.present.sum()))
        if cells.num_recorded:
            cells.rows.append(np.flatnonzero(column.present))
            cells.values.append(column.values[column.present])

    def rename(self, name: str, new: str) -> None:
        """Give a column a different name, if there is such a column."""
        if name in self._columns:
            self._columns[new] = self._columns.pop(name)
            self.meanings.pop(name, None)

    def remove(self, name: str) -> None:
        del self._columns[name]

    def add_note(self, *notes: str) -> None:
        self._notes += notes

    def note_counts(self, counts: Mapping[str, int]) -> None:
        """Add a note for each count that is not 0, in the words of its `count_sentence`."""
        self._notes += [
            count_sentence(count, template) for template, count in counts.items() if count
        ]

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    @property
    def recorded(self) -> dict[str, int]:
        """The columns in which a number was recorded, and how many were."""
        counts = {name: column.num_recorded for name, column in self._columns.items()}
        return {name: count for name, count in counts.items() if count}

    def num_texts(self, name: str) -> int:
        """Return how many cells of a column are words."""
        return self._columns[name].num_texts

    def first_text(self, name: str) -> str:
        """Return the first cell of a column that was text, or an empty string."""
        return self._columns[name].first_text

    @property
    def notes(self) -> list[str]:
        """The notes on the file and its cells."""
        notes = list(self._notes)
        if self._too_many_columns:
            notes.append(f"There are more than {MAX_COLUMNS} columns; the others are left out.")
        texts = {name: column for name, column in self._columns.items() if column.num_texts}
        textual = [name for name, column in texts.items() if not column.num_recorded]
        if textual:
            notes.append(f"Columns without a number, left out: {quoted_names(textual)}.")
        for name, column in texts.items():
            if column.num_recorded:
                notes.append(
                    count_sentence(
                        column.num_texts,
                        f"cell{{s}} of {quoted(name)} {{is}} no number and read as missing "
                        f"(the first: {quoted(column.first_text)})",
                    )
                )
        return notes

    def column(self, name: str) -> Column:
        """Return a column over all rows; missing where rows were left out, or if it is unknown."""
        cells = self._columns.get(name, _Cells())
        column = Column.missing(self.num_rows)
        for rows, values in zip(cells.rows, cells.values, strict=True):
            column.values[rows] = values
            column.present[rows] = True
        for rows in self._left_out:
            column.values[rows] = np.nan
            column.present[rows] = False
        return Column.complete(column.values) if column.present.all() else column

    def labels(self, name: str) -> Labels | None:
        """Return the texts of a column that may name runs; None for any other."""
        if name not in self._labelled:
            return None
        codes = np.full(self.num_rows, -1)
        for rows, own in self._columns[name].codes:
            codes[rows] = own
        return Labels(texts=list(self._columns[name].labels), codes=codes)

    def rows_with(self, names: Iterable[str]) -> BoolArray:
        found = np.zeros(self.num_rows, dtype=np.bool_)
        for name in names:
            for rows in self._columns[name].rows:
                found[rows] = True
        return found

    def leave_out(self, rows: IntArray) -> None:
        self._left_out.append(rows)

    @property
    def kept(self) -> BoolArray:
        kept = np.ones(self.num_rows, dtype=np.bool_)
        for rows in self._left_out:
            kept[rows] = False
        return kept


def to_run(table: Table, path: Path, format: str, wanted: Wanted | None = None) -> Run:
    """Return the run that a table holds; raises NoUsableLoss if there is no loss in it."""
    wanted = wanted or Wanted()
    separate(table, path, wanted.run)
    _apply(wanted, table, path)
    recorded = table.recorded
    empty = [name for name in table.names if name not in recorded]
    naming = name_columns(list(recorded), empty=empty, meanings=table.meanings)
    if STEP not in naming.foreign and LOSS in naming.foreign:
        table.meanings |= _epoch(table, naming.foreign[LOSS])
        naming = name_columns(list(recorded), empty=empty, meanings=table.meanings)
    foreign = naming.foreign
    if LOSS not in foreign:
        raise NoUsableLoss(_no_loss(table, path))
    notes = [*table.notes, *naming.notes]
    signals = _affordable(table, naming, notes)
    step, with_step = _steps(table, foreign.get(STEP), notes)
    _refuse_words(table, foreign.get(STEP), path)
    step = _joined(table, step, np.flatnonzero(with_step & table.kept), notes)
    with_loss = np.flatnonzero(table.rows_with([foreign[LOSS]]) & table.kept & with_step)
    repeated = with_loss[repeated_by_others(step[with_loss])]
    if wanted.step is None and not len(repeated) and _counts_nothing(step[with_loss]):
        notes.append(f"{quoted(foreign[STEP])} goes up and down: the rows are numbered instead.")
        step, with_step = np.arange(table.num_rows), np.ones(table.num_rows, dtype=np.bool_)
    if len(repeated):
        table.leave_out(repeated)
        notes.append(
            "Several writers log every step to this file: "
            + count_sentence(len(repeated), "record{s} at a step that was there {is} left out")
        )
    with_signal, kept = table.rows_with(signals), table.kept
    after = np.arange(table.num_rows) > np.flatnonzero(table.rows_with([foreign[LOSS]]))[-1]
    if np.count_nonzero(after & with_step) >= MIN_STEPS:
        # Steps that go on after the last loss say that it is no longer recorded.
        with_signal |= after & with_step
    rows = kept & with_step & with_signal
    _note_dropped(with_step[kept], with_signal[kept], notes)
    columns = _columns(table, naming, signals, rows)
    _without_idle_scale(columns, notes)
    if LOSS not in columns:
        raise NoUsableLoss(
            f"{path}: no row with a usable step has a value in {quoted(foreign[LOSS])}; "
            f"the step comes from {quoted(foreign[STEP])}, make sure that it holds numbers"
        )
    taken = np.flatnonzero(rows)
    if _is_unordered(step[rows][columns[LOSS].present]):
        order = np.argsort(step[rows], kind="stable")
        taken = taken[order]
        columns = {n: Column(one.values[order], one.present[order]) for n, one in columns.items()}
        notes.append("The steps are in no order, or fall: the rows are sorted by them.")
    block = Block.from_columns(
        columns,
        step=step[taken],
        attempt=_attempts(step[taken], columns[LOSS], notes),
        data_position=_positions(table, foreign.get(DATA_POSITION))[taken],
        qualities={
            alias.signal: alias.quality
            for alias in naming.aliases.values()
            if alias.quality < Quality.RAW and alias.signal in columns
        },
    )
    shown = {*_AXES, *columns}
    names = {name: column for name, column in foreign.items() if name in shown}
    return Run(block=block, format=format, path=path, names=names, notes=tuple(notes))


def _epoch(table: Table, loss: str) -> dict[str, Alias]:
    """Return the epoch as the step, if nothing else counts the records and each has its own."""
    for name in table.recorded:
        column = table.column(name)
        epochs = column.values[table.column(loss).present & column.finite]
        if words_of(name) == ("epoch",) and column.finite.all() and (epochs % 1 == 0).all():
            moves = np.diff(epochs)
            backwards = np.count_nonzero(moves < 0)  # a resumed run appends to the file
            if moves.all() and 10 * backwards <= len(moves):
                return {name: Alias(signal=STEP, name=name)}
    return {}


def _apply(wanted: Wanted, table: Table, path: Path) -> None:
    """Let the columns that the user named mean what the user says."""
    for signal, name in ((LOSS, wanted.loss), (STEP, wanted.step)):
        if name is None:
            continue
        if name not in table.recorded:
            raise NoUsableLoss(
                f"{path} has no numbers under {quoted(name)} (columns: "
                f"{quoted_names(list(table.recorded)) or 'none'}); give --{signal} one of these"
            )
        if signal == STEP and not _counts(table.column(name)):
            others = [other for other in table.recorded if is_step(other) and other != name]
            hint = f"did you mean {quoted(others[0])}?" if others else "name a column that does"
            raise NoUsableLoss(
                f"{path}: {quoted(name)} is no step: it does not rise by whole numbers; {hint}"
            )
        if name != signal:
            table.rename(signal, f"{signal} (other)")  # not to be taken for the signal of its name
        for other, alias in list(table.meanings.items()):
            if alias.signal == signal:
                table.meanings[other] = Alias(signal=other, name=other)
        known = table.meanings.get(name, Alias(signal=signal, name=name))
        table.meanings[name] = replace(known, signal=signal)


def _counts(column: Column) -> bool:
    """Return whether a column can number the records: not if it has fractions and stays or falls.

    A fraction of an epoch may number them, a learning rate may not.
    """
    values = column.values[column.finite]
    whole = np.floor(values)
    if 2 * np.count_nonzero(values != whole) <= len(values):
        return True
    rises = np.count_nonzero(np.diff(values) > 0)
    return bool(np.ptp(whole) > 0 and 2 * rises >= len(values) - 1)


def _without_idle_scale(columns: dict[str, Column], notes: list[str]) -> None:
    """Remove a loss scale that is always 1: it is printed where nothing is scaled."""
    scale = columns.get(LOSS_SCALE)
    if scale is not None and (scale.values[scale.present] == _UNSCALED).all():
        del columns[LOSS_SCALE]
        notes.append("The loss scale is always 1, so nothing is scaled: it is left out.")


def _affordable(table: Table, naming: Naming, notes: list[str]) -> list[str]:
    """Return the columns that become signals: all, unless most of their cells are missing."""
    signals = [name for name, alias in naming.aliases.items() if alias.signal not in _AXES]
    recorded = table.recorded
    limit = max(FREE_CELLS, CELLS_PER_VALUE * sum(recorded.values())) // table.num_rows or 1
    if len(signals) <= limit:
        return signals
    # The loss is never left out: everything else is judged against it.
    signals.sort(key=lambda name: (naming.aliases[name].signal != LOSS, -recorded[name]))
    notes.append(
        count_sentence(
            len(signals) - limit, "column{s} {is} left out: nearly all of the cells are missing"
        )
    )
    return signals[:limit]


def _steps(table: Table, name: str | None, notes: list[str]) -> tuple[IntArray, BoolArray]:
    """Return the step of each row, and which rows have one."""
    if name is None:
        notes.append(_note_numbered(table))
        return np.arange(table.num_rows), np.ones(table.num_rows, dtype=np.bool_)
    column = table.column(name)
    usable = column.finite & (np.abs(column.values) <= _LARGEST)
    values = np.where(usable, column.values, 0.0)
    whole = np.floor(values)
    fractions = np.count_nonzero(whole != values)
    if fractions:
        notes.append(
            count_sentence(
                fractions, f"step{{s}} in {quoted(name)} {{has}} a fraction, which is cut off"
            )
        )
    rounded = np.count_nonzero(np.abs(values) > _LARGEST_EXACT)
    if rounded:
        notes.append(
            count_sentence(
                rounded, f"step{{s}} in {quoted(name)} {{is}} over 2**53: known only roughly"
            )
        )
    return whole.astype(np.int64), usable


EXAMPLE_ROW = 50
"""The row whose epoch a note gives; the last one of a shorter log."""


def _note_numbered(table: Table) -> str:
    epoch = next((name for name in table.recorded if words_of(name) == ("epoch",)), "")
    known = table.column(epoch)
    rows = np.flatnonzero(known.finite)
    if not len(rows):
        return "There is no step column: the rows are numbered from 0 instead."
    row = rows[min(int(np.searchsorted(rows, EXAMPLE_ROW)), len(rows) - 1)]
    at = f"row {row} = epoch {known.values[row]:.4g}"
    return f'No step column: "step" below is the row number ({at}).'


def _refuse_words(table: Table, name: str | None, path: Path) -> None:
    """Raise UnreadableLog if many steps are words, such as 1,000: rows would be lost in silence."""
    words = 0 if name is None else table.num_texts(name)
    if name is not None and words >= max(MIN_WORDS, table.num_rows * MAX_WORDS):
        raise UnreadableLog(
            f"{path}: {words:,} steps in {quoted(name)} are no plain numbers (the first is "
            f"{quoted(table.first_text(name))}); write them without separators, or name the column "
            "that counts with --step"
        )


def _joined(table: Table, step: IntArray, rows: IntArray, notes: list[str]) -> IntArray:
    """Return steps that start again in each epoch as counted across epochs."""
    names = [name for name in table.recorded if words_of(name) == ("epoch",)]
    epoch = table.column(names[0]).values[rows] if names else np.full(len(rows), np.nan)
    if len(rows) < 2 or not np.isfinite(epoch).all():
        return step
    moves = np.diff(step[rows])
    starts_again = (moves < 0) & (np.diff(np.maximum.accumulate(epoch)) > 0)
    inner = moves[moves > 0]
    if not starts_again.any() or not len(inner):
        return step
    shifts = np.cumsum(np.where(starts_again, int(np.median(inner)) - moves, 0))
    # A run that goes back to an epoch goes back to its steps.
    _, first, which = np.unique(epoch, return_index=True, return_inverse=True)
    joined = step.copy()
    joined[rows] += np.concatenate(([0], shifts))[first][which]
    count = np.count_nonzero(starts_again)
    notes.append(count_sentence(count, JOINED))
    return joined


def _goes_back(step: IntArray) -> bool:
    """Return whether the steps of the losses go back all the time."""
    backwards = np.count_nonzero(np.diff(step) < 0)
    return len(step) >= MIN_STEPS and bool(backwards > BACKWARDS * len(step))


def _counts_nothing(step: IntArray) -> bool:
    """Return whether a column is called a step, but is a number of steps that varies."""
    return _goes_back(step) and len(np.unique(step)) < len(step)


def _is_unordered(step: IntArray) -> bool:
    return _goes_back(step) and len(np.unique(step)) == len(step)


def _attempts(step: IntArray, loss: Column, notes: list[str]) -> IntArray:
    """Return the attempt of each row: one more whenever the step decreases."""
    attempt = np.zeros(len(step), dtype=np.int64)
    np.cumsum(step[1:] < step[:-1], out=attempt[1:])
    times = int(attempt[-1])
    begins = next(
        (
            r
            for r in np.searchsorted(attempt, 1 + np.arange(min(times, _MAX_RESTARTS)))
            if _begins_anew(step, loss, int(r))
        ),
        None,
    )
    if begins is not None:
        notes.append(
            f"A second run begins after {begins:,} records: the step goes back from "
            f"{step[begins - 1]:,} to {step[begins]:,}, and the loss to where it began. All are "
            "judged as one run; give one of them alone."
        )
    elif times:
        often = {1: "once", 2: "twice"}.get(times, f"{times:,} times")
        notes.append(f"The step goes back {often}, as after a restart.")
    return attempt


_MAX_RESTARTS = 64
"""Times that the step goes back which are examined, so that no file takes forever. Chosen."""

_FEW = 5
"""Losses whose median is taken at the start, before the step goes back, and after. Chosen."""

_NEAR_START = 0.1
"""Share of the fall of the loss within which it counts as back at its start. Chosen."""


def _begins_anew(step: IntArray, loss: Column, row: int) -> bool:
    """Return whether a row is the first of a run: its step, and what had been learned, is gone."""
    if step[row] > step[0]:
        return False
    usable = loss.finite
    before, after = (
        np.flatnonzero(usable[part]) + part.start for part in (slice(0, row), slice(row, len(step)))
    )
    if len(before) < 4 * _FEW or len(after) < _FEW:
        return False
    start, end, anew = (
        float(np.median(loss.values[rows]))
        for rows in (before[:_FEW], before[-_FEW:], after[:_FEW])
    )
    return end < start and abs(anew - start) <= _NEAR_START * (start - end)


def _positions(table: Table, name: str | None) -> IntArray:
    if name is None:
        return np.full(table.num_rows, NO_POSITION)
    column = table.column(name)
    known = column.finite & (column.values >= 0) & (column.values <= _LARGEST)
    return np.where(known, column.values, NO_POSITION).astype(np.int64)


def _columns(
    table: Table, naming: Naming, signals: list[str], rows: BoolArray
) -> dict[str, Column]:
    """Return the signals under their canonical names, in these rows, without empty ones."""
    columns: dict[str, Column] = {}
    chosen = slice(None) if rows.all() else rows
    for name in signals:
        alias = naming.aliases[name]
        column = table.column(name)
        values, present = column.values[chosen], column.present[chosen]
        # A negative scale turns a sign around; some write under the same name what has it already.
        if alias.scale > 0 or np.count_nonzero(values > 0) < np.count_nonzero(values < 0):
            values = values * alias.scale if alias.scale != 1.0 else values
        if present.any():
            complete = present.all()
            columns[alias.signal] = Column.complete(values) if complete else Column(values, present)
    return columns


def _note_dropped(with_step: BoolArray, with_signal: BoolArray, notes: list[str]) -> None:
    without_step = np.count_nonzero(~with_step)
    if without_step:
        notes.append(count_sentence(without_step, "row{s} without a usable step {is} left out"))
    without_signal = np.count_nonzero(with_step & ~with_signal)
    if without_signal:
        notes.append(
            count_sentence(without_signal, "row{s} with a step and nothing else {is} left out")
        )


def _no_loss(table: Table, path: Path) -> str:
    for name, alias in name_columns(table.names, meanings=table.meanings).aliases.items():
        if alias.signal == LOSS:
            text = table.first_text(name)
            found = f"the first cell is {quoted(text)}" if text else "all cells are missing"
            return (
                f"{path}: {quoted(name)} is a loss column, but no number was recorded in it "
                f"({found}); write plain numbers, such as 2.5"
            )
    found = quoted_names(table.names) or "none"
    return (
        f"{path}: no column is known to be the training loss (columns: {found}); "
        "if one of them is, name it with --loss"
    )
