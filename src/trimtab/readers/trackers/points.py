"""Points: values that were logged one by one (name, step, value, time), put together as rows.

TensorBoard and MLflow keep every metric as a separate series, and some of these do not count
steps. So only the loss decides where a run was restarted, and every other value goes to
the row of its attempt and its step.
"""

from array import array

import numpy as np

from trimtab.core.block import Column, FloatArray, IntArray
from trimtab.core.signals import CLOCK, LOSS
from trimtab.readers.aliases import STEP, Alias, name_columns
from trimtab.readers.table import MAX_COLUMNS, Table

_TAKEN = (STEP, CLOCK)
"""Names of columns that are made here."""


class Points:
    """Values in the order in which they were logged."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        """Name to number."""
        self.numbers: array[int] = array("q")
        self.steps: array[int] = array("q")
        self.values: array[float] = array("d")
        self.times: array[float] = array("d")

    def __len__(self) -> int:
        return len(self.values)

    def number_of(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def add(self, name: str, step: int, value: float, time: float) -> None:
        """Add one value; `time` is in seconds since 1970, 0 if it is not known."""
        self.numbers.append(self.number_of(name))
        self.steps.append(step)
        self.values.append(value)
        self.times.append(time)

    def to_table(self, *, by_time: bool = False) -> Table:
        """Return the rows, each with its step and its time; `by_time` sorts the points first."""
        table = Table()
        if not self.values:
            return table
        numbers, steps = np.array(self.numbers), np.array(self.steps)
        values, times = np.array(self.values), np.array(self.times)
        if by_time:
            order = np.argsort(times, kind="stable")
            numbers, steps = numbers[order], steps[order]
            values, times = values[order], times[order]
        attempts = _attempts(numbers, steps, self._main(numbers))
        row_of, first = _rows(attempts, steps, numbers)
        rows = table.new_rows(len(first))
        table.add(STEP, rows, steps[first].astype(np.float64))
        self._fill(table, numbers, values, row_of)
        if len(rows) > 1 and len(np.unique(steps)) == 1:
            table.replace(STEP, Column.complete(rows.astype(np.float64)))
            table.add_note(
                f"Every value was logged at step {steps[0]}: the rows are numbered from 0."
            )
        known = np.isfinite(times) & (times > 0)
        if known.any():
            clock = np.full(len(rows), np.nan)
            clock[row_of[known]] = times[known]
            with_clock = np.flatnonzero(np.isfinite(clock))
            table.add(CLOCK, with_clock, clock[with_clock])
        return table

    def _main(self, numbers: IntArray) -> int:
        """Return the series that decides on attempts: the loss, else the longest."""
        loss = name_columns(list(self._names)[:MAX_COLUMNS]).foreign.get(LOSS)
        return self._names[loss] if loss else int(np.argmax(np.bincount(numbers)))

    def _fill(self, table: Table, numbers: IntArray, values: FloatArray, row_of: IntArray) -> None:
        order = np.argsort(numbers, kind="stable")
        borders = np.searchsorted(numbers[order], np.arange(len(self._names) + 1))
        for name, number in self._names.items():
            own = order[borders[number] : borders[number + 1]]
            column = f"{name} (logged)" if name in _TAKEN else name
            if number < MAX_COLUMNS and STEP in name_columns([column]).foreign:
                # The store has its own axis: a logged step is a value like any other.
                table.meanings[column] = Alias(signal=column, name=column)
            table.add(column, row_of[own], values[own])


def _attempts(numbers: IntArray, steps: IntArray, main: int) -> IntArray:
    """Return the attempt of each point: one more whenever the main series' step decreases."""
    positions = np.flatnonzero(numbers == main)
    back = np.flatnonzero(steps[positions[1:]] < steps[positions[:-1]])
    before, after = positions[back], positions[back + 1]
    attempts = np.searchsorted(after, np.arange(len(numbers)), side="right")
    for last, first in zip(before.tolist(), after.tolist(), strict=True):
        # Between the two, what is logged at an old step is of the old attempt.
        attempts[last + 1 : first] += steps[last + 1 : first] <= steps[first]
    return attempts


def _rows(attempts: IntArray, steps: IntArray, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the row of each point, and the first point of each row.

    A row is an attempt, a step, and the ordinal of the value among those of the same name there.
    """
    order = np.lexsort((numbers, steps, attempts))
    changed = (np.diff(attempts[order]) != 0) | (np.diff(steps[order]) != 0)
    repeated = np.concatenate([[False], ~changed & (np.diff(numbers[order]) == 0)])
    positions = np.arange(len(order))
    runs = np.maximum.accumulate(np.where(repeated, 0, positions))
    group = np.concatenate([[0], np.cumsum(changed)])
    copies = positions - runs
    keys = group * (int(copies.max(initial=0)) + 1) + copies
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    row_of = np.empty(len(order), dtype=np.int64)
    row_of[order] = inverse
    return row_of, order[first]
