"""Journals that earlier versions wrote read as they did then.

`fixtures/v0.1` was written by trimtab 0.1: three sealed segments, a log whose writer was killed, a
person's note; `truth.json` is what 0.1 itself read from it.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.jsonable import to_jsonable
from trimtab.journal import Follower, JournalRun, JournalWriter, RunDirectory, read_journal

OLD = Path(__file__).parent / "fixtures" / "v0.1"
TRUTH = json.loads((OLD / "truth.json").read_text())


@pytest.fixture
def old(tmp_path: Path) -> RunDirectory:
    shutil.copytree(OLD / "trimtab", tmp_path / "trimtab")
    return RunDirectory(tmp_path)


def assert_as_then(reading: JournalRun) -> None:
    block = reading.block
    for axis in ("step", "tick", "attempt", "data_position"):
        assert getattr(block, axis).tolist() == TRUTH[axis]
    assert list(block.columns) == list(TRUTH["columns"])
    for name, column in block.columns.items():
        wanted = TRUTH["columns"][name]
        assert column.present.tolist() == wanted["present"]
        np.testing.assert_array_equal(column.values, np.array(wanted["values"], dtype=np.float64))
    assert {name: quality.label for name, quality in block.qualities.items()} == TRUTH["qualities"]
    assert to_jsonable(block.events) == TRUTH["events"]
    assert (reading.damage, reading.dropped, reading.schema) == ((), 0, TRUTH["schema"])


def test_a_journal_of_0_1_reads_as_it_did_then(old: RunDirectory) -> None:
    reading = read_journal(old)
    assert_as_then(reading)
    assert reading.ended is None
    assert old.read_manifest()["seed"] == 1


def test_it_can_be_followed_and_continued(old: RunDirectory) -> None:
    with Follower(old) as follower:
        assert follower.poll().tick.tolist() == TRUTH["tick"]
        assert follower.damage == ()
    with JournalWriter(old) as writer:
        assert writer.append(100, {"loss": 1.0}) == len(TRUTH["tick"])
    assert writer.error is None
    assert not list(old.journal.glob("*.log")), "the log of the killed writer is sealed too"
    reading = read_journal(old)
    assert reading.block.step[-1] == 100
    assert reading.block.qualities.keys() == {"lr"}
    assert reading.ended == "closed"
    assert reading.damage == ()
