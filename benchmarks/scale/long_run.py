"""The journal of a long run, as trimtab leaves it: sealed segments, two spikes, checkpoints."""

from pathlib import Path

import numpy as np

from benchmarks.sealed_runs import write_run
from trimtab.core.block import FloatArray, IntArray
from trimtab.journal import RunDirectory
from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex
from trimtab.journal.checkpoints.manifest import CheckpointFacts, Manifest, write_manifest

SIGNALS = 200
SPIKE_RECORDS, SPIKE_HEIGHT = 10, 4.0
FAMILIES = ("param_norm", "update_norm", "activation_rms", "grad_norm", "adam_v_norm")
CHECKPOINTS = 10


def open_long_run(folder: Path, steps: int) -> RunDirectory:
    """The run of this length in a folder; written if it is not there."""
    run = RunDirectory(folder / f"long-{steps}")
    if not run.exists():
        _write_journal(run, steps)
        _write_checkpoints(run, steps)
    return run


def write_short_run(run: RunDirectory, steps: int, seed: int) -> None:
    """A run that has ended, of a few signals: one of many."""
    rng = np.random.default_rng(seed)

    def signals(rows: IntArray) -> dict[str, FloatArray]:
        return {
            "loss": 2.0 + 3.0 * np.exp(-rows / 100) + 0.02 * rng.normal(size=steps),
            "grad_norm": np.exp(0.1 * rng.normal(size=steps)),
            "clock": 1.7e9 + rows.astype(np.float64),
        }

    write_run(run, steps, signals, is_ended=True)


def _write_journal(run: RunDirectory, steps: int) -> None:
    rng = np.random.default_rng(0)
    names = [f"{FAMILIES[k % 5]}/blocks.{k // 5}" for k in range(SIGNALS - 4)]
    spikes = (steps // 4, 3 * steps // 4)

    def signals(rows: IntArray) -> dict[str, FloatArray]:
        loss = 2.0 + 3.0 * np.exp(-rows / 2e5) + 0.02 * rng.normal(size=len(rows))
        for spike in spikes:
            loss += SPIKE_HEIGHT * ((rows >= spike) & (rows < spike + SPIKE_RECORDS))
        values = {
            "loss": loss,
            "grad_norm": np.exp(0.1 * rng.normal(size=len(rows))),
            "lr": np.full(len(rows), 3e-4, dtype=np.float64),
            "clock": 1.7e9 + rows.astype(np.float64),
        }
        return values | {name: 1.0 + 1e-4 * rng.normal(size=len(rows)) for name in names}

    write_run(run, steps, signals, is_ended=True)


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
