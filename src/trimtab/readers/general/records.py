"""Records: the training records of a log with their steps, evaluations, and what is printed beside.

The lines that were chosen (`choice`) are the records. Lines around them complete these: a counter
on the line above, a learning rate on the line below, an evaluation between two of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.core.text import count_sentence
from trimtab.readers.cells import quoted
from trimtab.readers.general import roles
from trimtab.readers.general.choice import (
    Choice,
    Columns,
    Unclear,
    choose,
    find_counter,
    is_evaluation,
    stack,
)
from trimtab.readers.general.lines import BAR, FRACTION, INDEX
from trimtab.readers.general.roles import Counter
from trimtab.readers.general.shapes import Shape
from trimtab.readers.runs import JOINED, OF_FURTHER_RANKS, rows_of_others

_FAR = 1 << 60

_ENDS = re.compile(r"(?i)done|finish|complet|took|\bend|result|loss|saved|best|acc|elapsed|time")


@dataclass(slots=True, kw_only=True)
class Records:
    """The records of a run, under the names in the log."""

    loss: str
    step: str | None
    """None if rows have to be counted."""
    lines: IntArray
    """Where each of them is printed."""
    columns: dict[str, tuple[IntArray, FloatArray]] = field(default_factory=dict)
    """Name to rows, and the values in them."""
    evaluations: frozenset[str] = frozenset()
    """Columns that an evaluation wrote."""
    units: dict[str, str] = field(default_factory=dict)
    """Name to `ms` or `s`, for times."""
    rank: int = -1
    """The rank that printed them; -1 if it is not said."""
    notes: list[str] = field(default_factory=list)


def find_records(
    shapes: Sequence[Shape],
    phases: Sequence[tuple[int, bool]] = (),
    *,
    loss: str | None,
    step: str | None,
) -> Records:
    """Return the records of a log; raises Unclear if there are none, or if they are ambiguous.

    `phases` are lines that say what is being done, and whether that is an evaluation.
    """
    shapes = [shape for shape in shapes if shape.lines]
    return _Assembly(shapes, choose(shapes, loss=loss, step=step), step, phases).records()


@dataclass(frozen=True, slots=True)
class _Rows:
    """Training records while they are put together."""

    lines: IntArray
    ranks: IntArray
    columns: Columns
    step: FloatArray | None = None

    def __getitem__(self, index: IntArray | BoolArray) -> "_Rows":
        columns = {
            name: (values[index], there[index]) for name, (values, there) in self.columns.items()
        }
        step = None if self.step is None else self.step[index]
        return _Rows(self.lines[index], self.ranks[index], columns, step)

    @property
    def epoch(self) -> str | None:
        """The column that counts epochs, if all rows have one."""
        for name, (values, there) in self.columns.items():
            if roles.counter_class(name) == Counter.EPOCH and there.all() and roles.counts(values):
                return name
        return None


class _Assembly:
    """Puts the records of a log together."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        choice: Choice,
        wanted: str | None,
        phases: Sequence[tuple[int, bool]],
    ) -> None:
        self._phases = phases
        self._loss = choice.loss
        self._counter = choice.counter
        self._wanted = wanted
        self._chosen = [*choice.shapes, *(s for s in shapes if self._lacks_loss(s, choice))]
        chosen = {id(shape) for shape in self._chosen}
        self._others = [shape for shape in shapes if id(shape) not in chosen]
        self._is_bar = any(BAR in shape.names for shape in self._chosen)
        self._notes: list[str] = []
        self._rank = -1
        """The rank whose records they are; -1 if that is not said, or changes."""
        self._in_blocks = False
        """Whether a record is several lines under one that counts."""
        self._without_loss: tuple[IntArray, FloatArray] | None = None
        """Lines that begin a block without a loss in it, and their counts."""

    def records(self) -> Records:
        """Return the records."""
        rows = _Rows(*stack(self._chosen))
        rows = rows[np.argsort(rows.lines, kind="stable")]
        rows = self._of_training(rows)
        self._refuse_empty_step(rows)
        rows = replace(rows, step=self._steps(rows))
        rows = self._of_one_rank(rows)
        self._rank = int(rows.ranks[0]) if len(np.unique(rows.ranks)) == 1 else -1
        rows = self._distinct(rows)
        rows = replace(rows, step=self._joined(rows))
        records, steps = self._to_records(rows)
        self._add_beside(records, steps)
        self._add_evaluations(records, steps)
        records.notes, records.rank = self._notes, self._rank
        for shape in (*self._others, *self._chosen):
            records.units.update(shape.units)
        return records

    def _lacks_loss(self, shape: Shape, choice: Choice) -> bool:
        """Return whether a shape is a training record in which the loss was not printed."""
        if self._counter is None or self._counter not in shape.names or self._loss in shape.names:
            return False
        others = set(shape.names) - {self._counter}
        shared = others & set(choice.main.names)
        if is_evaluation(shape) or any(map(roles.is_evaluation_loss, others)):
            return False
        return 2 <= len(shared) >= len(others) / 2

    # Steps

    def _refuse_empty_step(self, rows: _Rows) -> None:
        """Raise Unclear if no record with a loss has a number in a column that is called a step."""
        for name, (values, there) in rows.columns.items():
            usable = there & np.isfinite(values) & rows.columns[self._loss][1]
            if roles.counter_class(name) >= Counter.STEP and not usable.any():
                raise Unclear(f"no record with a loss has a number under {quoted(name)}")

    def _steps(self, rows: _Rows) -> FloatArray | None:
        """Return the step of each row: that of its own line, else of a line above it."""
        if self._counter is None or self._is_mere_epoch(rows):
            return self._steps_above(rows.lines)
        values, there = rows.columns[self._counter]
        return np.where(there, values, np.nan)

    def _is_mere_epoch(self, rows: _Rows) -> bool:
        """Return whether the counter is an epoch in which there are several records."""
        counter = self._counter or ""
        if self._is_bar or self._wanted or roles.counter_class(counter) != Counter.EPOCH:
            return False
        same = np.diff(rows.columns[counter][0]) == 0
        repeated = np.diff(rows.columns[self._loss][0])[same] == 0
        return bool(same.sum() > 0.3 * len(rows.lines) and repeated.sum() < 0.5 * same.sum())

    def _steps_above(self, lines: IntArray) -> FloatArray | None:
        """Return the count on the nearest line above, if such lines alternate with the records."""
        self._counter = None
        counting: dict[str, list[Shape]] = {}
        for shape in self._others:
            counter = find_counter([shape], self._wanted)
            if counter not in (None, INDEX) and self._loss not in shape.names:
                counting.setdefault(str(counter), []).append(shape)
        numbers_of_lines = {
            name: sum(len(shape.lines) for shape in shapes)
            for name, shapes in counting.items()
            if self._alternate(shapes, lines)
        }
        if not numbers_of_lines:
            return None
        # Best is one count per record; more of them count what happens between two records.
        self._counter = name = max(
            numbers_of_lines,
            key=lambda name: (
                self._is_bar or numbers_of_lines[name] <= 1.2 * len(lines) + 1,
                roles.counter_class(name) >= Counter.STEP and counting[name][0].lines[0] < lines[0],
                roles.counter_class(name),
                -numbers_of_lines[name],
                name,
            ),
        )
        where = np.concatenate([shape.line_numbers for shape in counting[name]])
        order = np.argsort(where, kind="stable")
        where = where[order]
        numbers = np.concatenate([shape.column(name) for shape in counting[name]])[order]
        places = np.searchsorted(where, lines) - 1
        if places[0] < 0 and where[-1] > lines[-1]:
            places = np.minimum(places + 1, len(numbers) - 1)  # counted below: the end of a dict
        unused = np.setdiff1d(np.arange(len(numbers)), places)
        self._in_blocks = True
        if name != BAR and len(unused) <= 0.5 * len(lines):
            self._without_loss = (where[unused], numbers[unused])
        if name == BAR and places[0] >= 0 and numbers[places[0]] == 0:
            # It is redrawn after the record; the one after the last record is yet to come.
            numbers = np.append(numbers, 2 * numbers[-1] - numbers[max(len(numbers) - 2, 0)])
            places = np.minimum(places + 1, len(numbers) - 1)
        steps = np.where(places >= 0, numbers[np.maximum(places, 0)], np.nan)
        return _counted_back(steps)

    def _alternate(self, shapes: Sequence[Shape], lines: IntArray) -> bool:
        where = np.sort(np.concatenate([shape.line_numbers for shape in shapes]))
        places = np.searchsorted(where, lines)
        # Of a bar that is redrawn under its headline, the last drawing is the record.
        enough = 0.8 * (min(len(where), len(lines)) if self._is_bar else len(lines))
        few = max(0.2 * len(lines), float(len(lines) > 1))  # counted below: one has none above
        return len(np.unique(places)) >= enough and bool((places == 0).sum() <= few)

    def _joined(self, rows: _Rows) -> FloatArray | None:
        """Return steps that start again in each epoch as counted across epochs."""
        step, epoch = rows.step, rows.epoch
        if step is None or epoch == self._counter or len(step) < 2:
            return step
        number = rows.columns[epoch][0] if epoch else self._epochs_above(rows.lines)
        batches = self._counter in (BAR, FRACTION) or "batch" in roles.words_of(self._counter or "")
        if number is None and not batches:
            return step
        # A count of batches starts again with each epoch, whether or not the epoch is printed.
        moves = np.diff(step)
        restarts = moves <= 0
        if number is not None and not (batches and epoch is None):
            restarts &= np.diff(number) > 0
            if restarts.any() and roles.is_constant(step):
                length: FloatArray = step[0] * (number - number[0] + 1)
                return length
        if not restarts.any():
            return step
        inner = moves[~restarts & (moves > 0)]
        stride = float(np.median(inner)) if len(inner) else max(float(step[0]), 1.0)
        shift = np.cumsum(np.where(restarts, stride - moves, 0.0))
        self._notes.append(count_sentence(np.count_nonzero(restarts), JOINED))
        joined: FloatArray = step + np.concatenate([[0.0], shift])
        return joined

    def _epochs_above(self, lines: IntArray) -> FloatArray | None:
        """Return the epoch in the nearest headline above each record, as in `== Epoch 2 ==`."""
        for shape in self._others:
            epoch = find_counter([shape], None)
            if epoch and roles.counter_class(epoch) == Counter.EPOCH and _is_headline(shape):
                place = np.searchsorted(shape.line_numbers, lines) - 1
                numbers = shape.column(epoch)
                return np.where(place < 0, numbers[0] - 1, numbers[place])
        return None

    # Lines that are no further records

    def _of_training(self, rows: _Rows) -> _Rows:
        """Leave out records under lines that begin an evaluation, if others begin training."""
        headlines = sorted(
            (line, is_evaluation(shape))
            for shape in self._others
            if _is_headline(shape)
            for line in shape.lines
        )
        evaluations = sum(evaluates for _, evaluates in headlines)
        # Where each phase has a headline with its epoch, one of an evaluation is enough.
        are_clear = 0 < evaluations <= len(headlines) / 2 and not headlines[0][1]
        phases = headlines if are_clear else self._phases
        if not phases:
            return rows
        where = np.array([line for line, _ in phases])
        evaluates = np.array([is_evaluation for _, is_evaluation in phases])
        turns = np.flatnonzero(np.diff(evaluates, prepend=not evaluates[0]))
        ends = np.count_nonzero(~evaluates[turns])
        if are_clear and self._counter and roles.rises(rows.columns[self._counter][0]):
            return rows  # they count on, whatever was evaluated in between
        if min(ends, len(turns) - ends) < 2 and not are_clear:
            return rows  # said once, or only when an evaluation begins
        place = np.searchsorted(where, rows.lines) - 1
        others = (place >= 0) & evaluates[np.maximum(place, 0)]
        if others.any() and not others.all():
            self._notes.append(
                count_sentence(np.count_nonzero(others), "record{s} of evaluations {is} left out")
            )
            return rows[~others]
        return rows

    def _of_one_rank(self, rows: _Rows) -> _Rows:
        """Leave out what further ranks print."""
        ranks, columns = rows.ranks, rows.columns
        named = next((n for n in columns if roles.words_of(n)[-1:] in (("rank",), ("pid",))), None)
        if named is not None:
            ranks = np.where(columns[named][1], columns[named][0], -1).astype(np.int64)
        elif INDEX in columns and self._counter not in (None, INDEX):
            index = columns[INDEX][0]
            if len(np.unique(index)) < 0.5 * len(index):  # as `srun --label` prints it
                ranks = np.where(np.isfinite(index), index, -1).astype(np.int64)
        others = rows_of_others(ranks)
        if not len(others):
            return rows
        self._notes.append(count_sentence(len(others), OF_FURTHER_RANKS))
        return rows[np.setdiff1d(np.arange(len(ranks)), others)]

    def _distinct(self, rows: _Rows) -> _Rows:
        """Leave out redrawn bars, and records that are printed twice."""
        if rows.step is None or len(rows.lines) < 2:
            return rows
        losses, there = rows.columns[self._loss]
        if _is_interleaved(rows.step):
            first = np.sort(np.unique(rows.step, return_index=True)[1])
            further = len(rows.lines) - len(first)
            self._notes.append(count_sentence(further, OF_FURTHER_RANKS))
            return rows[first]
        same = (np.diff(rows.step) == 0) & there[1:] & there[:-1]
        if rows.epoch is not None:
            same &= np.diff(rows.columns[rows.epoch][0]) == 0
        drop = np.zeros(len(rows.lines), dtype=np.bool_)
        if self._is_bar:
            drop[:-1] = same
            moved = (np.diff(rows.step) > 0) & (np.diff(losses) == 0)
            begins = self._counter == BAR and rows.step[0] == 0
            if begins and moved.sum() > 0.5 * np.count_nonzero(np.diff(rows.step) > 0):
                drop[:-1] = moved  # each loss is shown before the bar counts it, and after
        elif not roles.is_constant(rows.step) or np.isclose(losses, losses[0]).all():
            # A loss that is not finite is news, at whatever step.
            drop[1:] = same & (np.isfinite(losses[1:]) | ~np.isfinite(losses[:-1]))
        if drop.any():
            kind = "bar{s} drawn again" if self._is_bar else "record{s} printed more than once"
            self._notes.append(count_sentence(np.count_nonzero(drop), f"{kind} {{is}} left out"))
        rows = rows[~drop]
        return rows[:-1] if self._repeats_the_best(rows) else rows  # type: ignore[index]

    def _repeats_the_best(self, rows: _Rows) -> bool:
        """Return whether the last row repeats an earlier one, as early stopping prints it."""
        step, losses = rows.step, rows.columns[self._loss][0]
        if step is None or len(step) < 3 or step[-1] >= step[-2]:
            return False
        if rows.epoch is not None and np.diff(rows.columns[rows.epoch][0])[-1] > 0:
            return False
        twins = (step[:-1] == step[-1]) & np.isclose(losses[:-1], losses[-1], rtol=1e-4)
        return bool(twins.any())

    # What is printed beside the records

    def _to_records(self, rows: _Rows) -> tuple[Records, FloatArray | None]:
        """Return the rows as records, with those that have no loss, and their steps."""
        lines, step = rows.lines, rows.step
        index = np.arange(len(lines))
        if self._without_loss is not None and step is not None and (np.diff(step) > 0).all():
            lines, place = _merged(lines, self._without_loss[0])
            full = np.empty(len(lines))
            full[place] = np.concatenate([step, self._without_loss[1]])
            index, step = place[: len(index)], full
        step_name = self._counter if step is not None else None
        records = Records(loss=self._loss, step=step_name, lines=lines)
        if step is not None and step_name is not None:
            known = np.flatnonzero(np.isfinite(step))
            records.columns[step_name] = (known, step[known])
        for name, (values, there) in rows.columns.items():
            if name != step_name:
                records.columns[name] = (index[there], values[there])
        return records, step if step_name else None

    def _counter_of(self, shape: Shape) -> str | None:
        """Return what counts steps in lines beside the records, by the same name or another."""
        if self._counter in shape.names:
            return self._counter
        counter = find_counter([shape], None)
        return counter if counter and roles.counter_class(counter) >= Counter.STEP else None

    def _of_rank(self, shape: Shape) -> BoolArray:
        ranks = np.array(shape.ranks)
        return np.asarray((ranks == self._rank) | (ranks < 0) | (self._rank < 0))

    def _add_beside(self, records: Records, steps: FloatArray | None) -> None:
        """Add the values of lines that belong to a record."""
        number = len(records.lines)
        printed = {roles.signal_of(name) for name in records.columns}
        for shape in self._others:
            own = self._of_rank(shape)
            if is_evaluation(shape) or not min(number, 2) <= own.sum() <= 1.2 * number + 1:
                continue
            all_names = self._in_blocks and len(shape.lines) >= 0.5 * number
            for name in shape.names:
                signal = roles.signal_of(name)
                if name in records.columns or not (all_names or signal):
                    continue
                if signal is not None and signal in printed:
                    continue  # the record itself has it
                where = np.where(own, self._rows_beside(shape, records.lines, steps), -1)
                rows, first = np.unique(where[where >= 0], return_index=True)
                if len(rows):
                    records.columns[name] = (rows, shape.column(name)[where >= 0][first])

    def _rows_beside(self, shape: Shape, lines: IntArray, steps: FloatArray | None) -> IntArray:
        """Return the record that each line of a shape belongs to, or -1."""
        own = shape.line_numbers
        after = np.searchsorted(lines, own)
        before = after - 1
        after = np.where(after < len(lines), after, -1)
        counter = self._counter_of(shape)
        if steps is not None and counter is not None:
            count = shape.column(counter)
            fits_before, fits_after = steps[before] == count, steps[after] == count
            if (fits_before | fits_after).mean() >= 0.5:
                found: IntArray = np.where(fits_after, after, np.where(fits_before, before, -1))
                return found
        to_before = float(np.median(np.where(before >= 0, own - lines[before], _FAR)))
        to_after = float(np.median(np.where(after >= 0, lines[after] - own, _FAR)))
        if to_before == to_after:
            return after if own[0] < lines[0] else before
        return before if to_before < to_after else after

    def _add_evaluations(self, records: Records, steps: FloatArray | None) -> None:
        """Add rows for the losses of evaluations; where nothing counts steps, no new rows."""
        if records.step is None or steps is None:
            self._add_evaluations_beside(records)
            return
        found: dict[str, list[tuple[IntArray, FloatArray, FloatArray]]] = {}
        counted: dict[str, bool] = {}
        for shape in self._others:
            name = next((name for name in shape.names if _is_result(shape, name)), None)
            mine = self._of_rank(shape)
            if name is None or not mine.any():
                continue
            counter = self._counter_of(shape)
            is_named = roles.is_evaluation(name) and name not in records.columns
            label, has_count = name if is_named else f"eval {name}", counter is not None
            if counted.setdefault(label, has_count) != has_count:
                continue  # the same result, printed once more
            count = None if counter is None else shape.column(counter)[mine]
            own = shape.line_numbers[mine]
            after = np.searchsorted(records.lines, own)
            earlier = steps[np.maximum(after - 1, 0)]
            later = steps[np.minimum(after, len(steps) - 1)]
            # What it counts otherwise (epochs, the next step) must not look like a restart.
            at = earlier if count is None else np.clip(count, earlier, np.maximum(earlier, later))
            if count is not None:
                at = np.where(after == len(steps), np.maximum(count, earlier), at)
                at = np.where(after == 0, np.minimum(count, later), at)
            found.setdefault(label, []).append((own, at, shape.column(name)[mine]))
        for label, parts in found.items():
            own, at, values = (np.concatenate(column) for column in zip(*parts, strict=True))
            records.lines, place = _merged(records.lines, own)
            old, new = place[: -len(own)], place[-len(own) :]
            records.columns = {name: (old[r], v) for name, (r, v) in records.columns.items()}
            rows, counts = records.columns[records.step]
            records.columns[records.step] = (
                np.concatenate([rows, new]),
                np.concatenate([counts, at]),
            )
            records.columns[label] = (new, values)
        records.evaluations = frozenset(found)

    def _add_evaluations_beside(self, records: Records) -> None:
        """Add the losses of evaluations to the records before them: rows stand for steps here."""
        found: dict[str, list[tuple[IntArray, FloatArray]]] = {}
        for shape in self._others:
            name = next((name for name in shape.names if _is_result(shape, name)), None)
            mine = self._of_rank(shape)
            if name is None or name in records.columns or not mine.any():
                continue
            label = name if roles.is_evaluation(name) else f"eval {name}"
            rows = np.searchsorted(records.lines, shape.line_numbers[mine]) - 1
            found.setdefault(label, []).append((np.maximum(rows, 0), shape.column(name)[mine]))
        for label, parts in found.items():
            rows, values = (np.concatenate(column) for column in zip(*parts, strict=True))
            rows, first = np.unique(rows, return_index=True)
            records.columns[label] = (rows, values[first])
        records.evaluations = frozenset(found)


def _counted_back(steps: FloatArray) -> FloatArray:
    """Return steps with those before the first known one, as far as they are not negative."""
    known = np.flatnonzero(np.isfinite(steps))
    if len(known) < 3 or not known[0]:
        return steps
    stride = float(np.median(np.diff(steps[known])))
    earlier = steps[known[0]] - stride * np.arange(known[0], 0, -1)
    if stride <= 0 or earlier[0] < 0:
        return steps
    return np.concatenate([earlier, steps[known[0] :]])


def _is_interleaved(steps: FloatArray) -> bool:
    """Return whether several processes count the same steps: they overtake each other, nearby.

    After a restart the count goes back once, and where it restarts with each epoch, to its start.
    """
    moves = np.diff(steps)
    back = int((moves < 0).sum())
    if back < max(3, 0.1 * len(steps)) or len(np.unique(steps)) > 0.67 * len(steps):
        return False
    reach = float(np.nanmax(steps) - np.nanmin(steps))
    return bool(reach >= 8 * np.median(moves[moves > 0]) and moves.min() >= -0.5 * reach)


def _is_headline(shape: Shape) -> bool:
    """Return whether lines say that an epoch begins: `Validating epoch 2`, not its end."""
    kinds = [roles.counter_class(name) for name in shape.names]
    is_epoch = Counter.EPOCH in kinds and not any(roles.loss_class(name) for name in shape.names)
    return is_epoch and not shape.units and not _ENDS.search(shape.sample)


def _is_result(shape: Shape, name: str) -> bool:
    return roles.is_evaluation_loss(name) or (is_evaluation(shape) and roles.loss_class(name) >= 2)


def _merged(lines: IntArray, more: IntArray) -> tuple[IntArray, IntArray]:
    """Return all lines in order, and the place of each of the old and then the new ones."""
    everything = np.concatenate([lines, more])
    order = np.argsort(everything, kind="stable")
    place = np.empty(len(everything), dtype=np.int64)
    place[order] = np.arange(len(everything))
    return everything[order], place
