"""Which rows and columns of a table are one run.

A table may hold several runs: rows that a column names (`run_id,step,loss`), or columns with the
name of their run in theirs (`seed_1_loss,seed_2_loss`; W&B writes `RUN - METRIC`). One of them is
read, and a note names the others. It may also hold evaluations among the training records, and
what other ranks logged at the same steps.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab.core.block import Column, IntArray
from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import LOSS
from trimtab.core.text import printable
from trimtab.readers.aliases import STEP, Alias, alias_table, fold, name_columns
from trimtab.readers.cells import quoted, quoted_names

if TYPE_CHECKING:
    from trimtab.readers.table import Table

_RUN_IDS = ("run_id", "run", "run_name")
"""Columns that name the run of a row, the best first."""

_RUN_COLUMNS = (
    *("model", "model_name", "experiment", "experiment_name", "experiment_id", "exp", "exp_name"),
    *("trial", "trial_id", "variant", "method", "optimizer", "fold", "seed"),
)
"""Columns of settings that are the same in all rows of a run: together they name it."""

_TELLING = ("event", "type", "split", "phase", "mode", "stage", "kind")
"""Columns whose text says what wrote a row."""

_EVALUATIONS = frozenset(
    {"eval", "evaluation", "evaluate", "val", "valid", "validation", "test", "dev"}
)

LABEL_COLUMNS = frozenset((*_RUN_IDS, *_RUN_COLUMNS, *_TELLING))
"""Folded names of the columns whose cells are kept as text."""

_RANKS = ("rank", "global_rank")

OF_FURTHER_RANKS = "record{s} of further ranks {is} left out"
JOINED = "epoch{s} {is} joined to the one before: the step count starts again"
"""Notes on a count, for `count_sentence`."""

_OWN_PREFIX = "trimtab/"
"""What `trimtab observe --to` prepends to its names in trackers."""

_MAX_RUNS = 1000
_MAX_PARTS = 8
"""Parts of a name that are examined. Both limits keep a hostile file from taking forever."""

_BETWEEN = re.compile(r" - |[ _/-]+")
_RUN_NAME = re.compile(
    r"(?i)(?:run|seed|exp|experiment|trial|job|fold|variant|config|lr|wd|bs)"
    r"(?:[ _=.-]+[\w.+=-]+|\d[\w.]*)"
)
"""What a run is called within the name of a column. `box_loss` and `cls_loss` are not two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One of the runs in a file."""

    id: str
    name: str

    def __str__(self) -> str:
        return printable(self.name or self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The texts in a column."""

    texts: Sequence[str]
    codes: IntArray
    """Index into the texts for each row, -1 where the cell is missing."""

    def text(self, row: int) -> str:
        return self.texts[self.codes[row]] if self.codes[row] >= 0 else ""


def choose_run(path: Path, runs: Sequence[StoredRun], wanted: str | None) -> StoredRun:
    """Return the run with the wanted name or id, else the first; raises UnreadableLog if none."""
    if not runs:
        raise UnreadableLog(f"{path} holds no run; check that anything was logged to it")
    if wanted is None:
        return runs[0]
    for run in runs:
        if wanted in (run.id, run.name):
            return run
    names = quoted_names([str(run) for run in runs])
    raise UnreadableLog(f"{path} has no run {quoted(wanted)}; its runs: {names}")


def note_choice(table: "Table", run: StoredRun, runs: Sequence[StoredRun]) -> None:
    table.is_one_run = True
    others = [str(other) for other in runs if other != run]
    if others:
        table.add_note(
            f"Of {len(runs)} runs in the file, {quoted(str(run))} is read; --run reads a different "
            f"one: {quoted_names(others)}."
        )


def separate(table: "Table", path: Path, wanted: str | None) -> None:
    """Reduce the table to one run, the wanted or the newest one, and to its training records."""
    if table.is_one_run:
        return
    table.is_one_run = True
    _restore_own_names(table)
    _rename_evaluations(table)
    # A format that knows what its columns mean has chosen its records too.
    by_rows = {} if table.meanings else _runs_by_rows(table, wanted)
    by_columns = {} if table.meanings or by_rows else _runs_by_columns(table)
    runs = list(by_rows or by_columns)
    if runs:
        run = choose_run(path, runs, wanted)
        note_choice(table, run, runs)
        if by_rows:
            table.leave_out(np.setdiff1d(np.arange(table.num_rows), by_rows[run]))
        if by_columns:
            # Another run may have gone on.
            table.leave_out(np.flatnonzero(~table.rows_with(by_columns[run])))
        for other, names in by_columns.items():
            for name in names:
                if other == run:
                    table.rename(name, names[name])
                else:
                    table.remove(name)
    elif wanted is not None:
        if wanted not in table.recorded or any(map(is_loss, table.recorded)):
            raise UnreadableLog(f"{path} holds one run; leave out the run {wanted!r}")
        # Every column is the loss of a run, and called after it.
        for name in [name for name in table.names if not alias_table().claim(name).known]:
            if name != wanted:
                table.remove(name)
        table.meanings[wanted] = Alias(signal=LOSS, name=wanted)
        table.leave_out(np.flatnonzero(~table.rows_with([wanted])))
    _leave_out_ranks(table)


def _restore_own_names(table: "Table") -> None:
    if _OWN_PREFIX + LOSS in table.recorded:
        for name in [name for name in table.names if name.startswith(_OWN_PREFIX)]:
            own = name.removeprefix(_OWN_PREFIX)
            table.rename(own, f"{own} (other)")
            table.rename(name, own)


def is_loss(name: str) -> bool:
    """Return whether the alias table knows a name as the training loss."""
    claim = alias_table().claim(name)
    return claim.known and claim.alias.signal == LOSS


def is_step(name: str) -> bool:
    return alias_table().claim(name).alias.signal == STEP


def _rename_evaluations(table: "Table") -> None:
    """Give the losses of evaluations an evaluation's name."""
    rows = np.zeros(table.num_rows, dtype=np.bool_)
    for name in table.names:
        labels = table.labels(name) if fold(name) in _TELLING else None
        if labels is not None:
            known = [n for n, text in enumerate(labels.texts) if text.lower() in _EVALUATIONS]
            rows |= np.isin(labels.codes, known)
    if not rows.any():
        return
    for name in [name for name in table.recorded if fold(name.split("/")[-1]) == LOSS]:
        column = table.column(name)
        table.replace(name, Column(column.values, column.present & ~rows))
        table.replace(f"eval_{name}", Column(column.values, column.present & rows))


# Runs in one file


def _runs_by_rows(table: "Table", wanted: str | None) -> Mapping[StoredRun, IntArray]:
    """Return the rows of each run that a column names, the run with the last row first."""
    found = {fold(name): labels for name in table.names if (labels := table.labels(name))}
    with_loss = table.rows_with([name for name in table.recorded if "loss" in name.lower()])
    varied = {
        name: labels
        for name, labels in found.items()
        if len(np.unique(labels.codes[with_loss & (labels.codes >= 0)])) > 1
    }
    ids = [name for name in _RUN_IDS if name in varied][:1]
    keys = [varied[name] for name in ids or _RUN_COLUMNS if name in varied]
    if not keys:
        return {}
    rows = np.flatnonzero(np.all([labels.codes >= 0 for labels in keys], axis=0))
    order = rows[np.lexsort([labels.codes[rows] for labels in keys])]
    changed = np.any([np.diff(labels.codes[order]) for labels in keys], axis=0)
    parts = [part for part in np.split(order, np.flatnonzero(changed) + 1) if with_loss[part].any()]
    parts.sort(key=lambda part: -int(part[-1]))
    if wanted is None and (
        2 * len(parts) > np.count_nonzero(with_loss) or _is_continued(table, parts)
    ):
        return {}
    runs: dict[StoredRun, IntArray] = {}
    for part in parts:
        run = ", ".join(labels.text(part[-1]) for labels in keys)
        name = varied["run_name"].text(part[-1]) if "run_name" in varied else run
        runs[StoredRun(id=run, name=name)] = part
    return runs


def _is_continued(table: "Table", runs: Sequence[IntArray]) -> bool:
    """Return whether each run goes on where the one before was: a run that was restarted."""
    name = name_columns(list(table.recorded)).foreign.get(STEP)
    if name is None:
        return False
    steps = table.column(name)
    usable = steps.finite
    own = [steps.values[rows[usable[rows]]] for rows in reversed(runs)]
    return all(
        len(before) > 0 and len(after) > 0 and after.min() > np.median(before)
        for before, after in pairwise(own)
    )


def _runs_by_columns(table: "Table") -> Mapping[StoredRun, Mapping[str, str]]:
    """Return the columns of each run, with their names once that of the run is left out."""
    affixes: dict[tuple[str, str], str] = {}
    """What comes before and after the name of a metric, to the run."""
    for name in [name for name in table.recorded if "loss" in name.lower()]:
        for between in islice(_BETWEEN.finditer(name), _MAX_PARTS):
            before, after = name[: between.start()], name[between.end() :]
            if (between[0] == " - " or _RUN_NAME.fullmatch(before)) and is_loss(after):
                affixes[before + between[0], ""] = before
            elif _RUN_NAME.fullmatch(after) and is_loss(before):
                affixes["", between[0] + after] = after
    if len(affixes) > _MAX_RUNS:
        return {}
    runs: dict[StoredRun, dict[str, str]] = {}
    shared = set(table.names)
    for (start, end), run in affixes.items():
        own = [name for name in table.names if name.startswith(start) and name.endswith(end)]
        names = {name: name[len(start) : len(name) - len(end)] for name in own}
        runs.setdefault(StoredRun(id=run, name=run), {}).update(names)
        shared.difference_update(own)
    is_export = any(start.endswith(" - ") for start, _ in affixes)
    return {} if any(map(is_loss, shared)) or len(runs) < 2 - is_export else runs


# Ranks in one file

_MAX_CHANGES = 64
"""How often a different rank may take over the printing, as Megatron's last rank does when a
restart has more ranks. The limit keeps a hostile file from taking forever."""

_MIN_TURNS = 8
"""Times that the step has to go back before writers are said to take turns."""

_NEAR = 6
"""Records between what two writers log at one step. A restart repeats more, or seldom."""


def rows_of_others(ranks: IntArray) -> IntArray:
    """Return the records to leave out so that at any time only one rank speaks.

    Where several ranks print records, each has its own view of the step, and their lines come in
    no order. The rank with the most records is kept, those that fall into its time are not; and so
    on in what lies before and after.
    """
    others = np.zeros(len(ranks), dtype=np.bool_)
    parts = [np.arange(len(ranks))]
    for _ in range(_MAX_CHANGES):
        if not parts:
            break
        rows = parts.pop()
        found, counts = np.unique(ranks[rows], return_counts=True)
        if len(found) < 2:
            continue
        speaker = found[np.argmax(counts)]
        spoken = np.flatnonzero(ranks[rows] == speaker)
        first, end = spoken[0], spoken[-1] + 1
        within = np.unique(ranks[rows[first:end]])
        other = np.isin(ranks[rows], within[within != speaker])
        others[rows[other]] = True
        parts += [rows[:first][~other[:first]], rows[end:][~other[end:]]]
    return np.flatnonzero(others)


def _leave_out_ranks(table: "Table") -> None:
    """Leave out the losses of all ranks but one, where a column tells the ranks apart."""
    for name in [name for name in table.recorded if fold(name) in _RANKS]:
        losses = [name for name in table.recorded if is_loss(name)]
        ranks = table.column(name)
        rows = np.flatnonzero(table.rows_with(losses) & table.kept & ranks.finite)
        others = rows[rows_of_others(ranks.values[rows].astype(np.int64))]
        table.leave_out(others)
        table.note_counts({OF_FURTHER_RANKS: len(others)})


def repeated_by_others(step: IntArray) -> IntArray:
    """Return the records at a step that another writer has just logged.

    Writers that share a file take turns: again and again the step goes back a little, and most
    steps are there more than once. After a restart it goes back far, and seldom.
    """
    back = np.flatnonzero(np.diff(step) < 0) + 1
    if len(back) < _MIN_TURNS:
        return back[:0]
    order = np.argsort(step, kind="stable")
    near = (np.diff(step[order]) == 0) & (np.diff(order) <= _NEAR)
    repeated = np.sort(order[1:][near])
    taken_turns = 3 * len(np.unique(step[repeated])) >= 2 * len(np.unique(step))
    explained = np.isin(back, repeated).mean() >= 0.9
    return repeated if taken_turns and explained else back[:0]
