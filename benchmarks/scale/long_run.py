"""The journal of a long run, as trimtab leaves it: sealed segments, two spikes, checkpoints."""

from pathlib import Path

import numpy as np

from trimtab.core.block import Block, Column
from trimtab.journal import RunDirectory
from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex
from trimtab.journal.checkpoints.manifest import CheckpointFacts, Manifest, write_manifest
from trimtab.journal.files import JournalFiles
from trimtab.journal.sealed_segment import write_segment
from trimtab.journal.writer import JournalLimits

SIGNALS = 200
SPIKE_RECORDS, SPIKE_HEIGHT = 10, 4.0
FAMILIES = ("param_norm", "update_norm", "activation_rms", "grad_norm", "adam_v_norm")
CHECKPOINTS = 10


def open_long_run(folder: Path, steps: int) -> RunDirectory:
    """The run of this length in a folder; written if it is not there."""
    run = RunDirectory(folder / f"long-{steps}")
    if not run.exists():
        run.journal.mkdir(parents=True)
        _write_journal(run, steps)
        _write_checkpoints(run, steps)
    return run


def write_short_run(run: RunDirectory, steps: int, seed: int) -> None:
    """A run that has ended, of a few signals: one of many."""
    rng = np.random.default_rng(seed)
    run.journal.mkdir(parents=True)
    rows = np.arange(steps)
    columns = {
        "loss": Column.complete(2.0 + 3.0 * np.exp(-rows / 100) + 0.02 * rng.normal(size=steps)),
        "grad_norm": Column.complete(np.exp(0.1 * rng.normal(size=steps))),
        "clock": Column.complete(1.7e9 + rows.astype(np.float64)),
    }
    _seal(run, 0, columns, rows, is_last=True)


def _write_journal(run: RunDirectory, steps: int) -> None:
    rng = np.random.default_rng(0)
    size = JournalLimits().segment_records
    names = [f"{FAMILIES[k % 5]}/blocks.{k // 5}" for k in range(SIGNALS - 4)]
    spikes = (steps // 4, 3 * steps // 4)
    for index, start in enumerate(range(0, steps, size)):
        rows = np.arange(start, min(start + size, steps))
        loss = 2.0 + 3.0 * np.exp(-rows / 2e5) + 0.02 * rng.normal(size=len(rows))
        for spike in spikes:
            loss += SPIKE_HEIGHT * ((rows >= spike) & (rows < spike + SPIKE_RECORDS))
        columns = {
            "loss": Column.complete(loss),
            "grad_norm": Column.complete(np.exp(0.1 * rng.normal(size=len(rows)))),
            "lr": Column.complete(np.full(len(rows), 3e-4, dtype=np.float64)),
            "clock": Column.complete(1.7e9 + rows.astype(np.float64)),
        }
        for name in names:
            columns[name] = Column.complete(1.0 + 1e-4 * rng.normal(size=len(rows)))
        _seal(run, index, columns, rows, is_last=start + size >= steps)


def _write_checkpoints(run: RunDirectory, steps: int) -> None:
    index = CheckpointIndex(run.home)
    for number in range(CHECKPOINTS):
        step = steps * (number + 1) // (CHECKPOINTS + 1)
        facts = CheckpointFacts(
            step=step, data_position=step, attempt=0, world=1, num_bytes=0, serial=number
        )
        folder = index.folder / f"step-{step:08d}"
        folder.mkdir(parents=True)
        write_manifest(folder, Manifest(facts=facts, files={}))
        index.add(CheckpointEntry(folder=folder.name, facts=facts))


def _seal(
    run: RunDirectory,
    index: int,
    columns: dict[str, Column],
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    *,
    is_last: bool,
) -> None:
    entries = [{"kind": "segment", "schema": 1, "index": index, "qualities": {}}]
    if is_last:
        entries.append({"kind": "end", "how": "finished"})
    block = Block.from_columns(columns, step=rows, tick=rows)
    write_segment(JournalFiles(run.journal).sealed(index), block, entries)
