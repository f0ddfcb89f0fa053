"""What trimtab writes to trackers is read back under the names that the journal has."""

import json
from pathlib import Path

import numpy as np
from tests.readers.shapes import Write, values

from trimtab.core.block import Block, Column
from trimtab.core.signals import BALANCING_LOSS, CLOCK, GRAD_NORM, LOSS, LR
from trimtab.integrations.sinks.rows import PREFIX, tracker_rows
from trimtab.integrations.sinks.tensorboard_sink import scalars_event, version_event
from trimtab.readers import read_log


def recorded(count: int = 30) -> Block:
    noise = np.random.default_rng(0).normal(0, 0.01, count)
    columns = {
        LOSS: 3 + noise,
        GRAD_NORM: 1 + noise,
        LR: np.full(count, 2.0**-10),
        "param_norm/blocks": 5 + noise,
        BALANCING_LOSS: 0.5 + noise,
        CLOCK: 1.7e9 + np.arange(count),
    }
    single = {name: values.astype(np.float32) for name, values in columns.items() if name != CLOCK}
    return Block.from_columns(
        {
            name: Column.complete(np.asarray(single.get(name, values), dtype=np.float64))
            for name, values in columns.items()
        },
        step=np.arange(count),
    )


def test_tensorboard(tmp_path: Path) -> None:
    block = recorded()
    events = [scalars_event(row.step, row.clock, row.values) for row in tracker_rows(block)]
    path = tmp_path / "events.out.tfevents.trimtab"
    path.write_bytes(version_event(1.7e9) + b"".join(events))
    reading = read_log(path)
    assert reading.block.columns.keys() == block.columns.keys()
    assert reading.block.step.tolist() == block.step.tolist()
    for name in block.columns:
        assert values(reading.block, name) == values(block, name)
    assert not any("guessed" in note for note in reading.notes)


def test_names_beside_those_of_the_user(write: Write) -> None:
    rows = [
        {"_step": tick, f"{PREFIX}step": 7 + tick, f"{PREFIX}loss": 2.5, "loss": 9.0, "acc": 0.5}
        for tick in range(3)
    ]
    block = read_log(write("".join(json.dumps(row) + "\n" for row in rows))).block
    assert block.step.tolist() == [7, 8, 9]
    assert values(block, LOSS) == [2.5] * 3
    assert block.columns.keys() == {LOSS, "loss (other)", "acc", "_step"}
