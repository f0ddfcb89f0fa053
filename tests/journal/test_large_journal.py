"""A journal that is too large for memory is read from its files, with the same result."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.core.block import Block, Column, StoredColumns
from trimtab.diagnosis import diagnose
from trimtab.journal import JournalWriter, RunDirectory, assembly, read_journal
from trimtab.journal.files import JournalFiles
from trimtab.journal.writer import JournalLimits

RECORDS = 700
CONFIG = JournalLimits(segment_records=100)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Seven sealed segments; one signal is rare, one appears late, one has a spike."""
    directory = RunDirectory(tmp_path / "run")
    rng = np.random.default_rng(3)
    with JournalWriter(directory, CONFIG) as writer:
        for step in range(RECORDS):
            noise = float(rng.normal())
            signals = {"loss": 3.0 + 0.02 * noise + 6.0 * (500 <= step < 506), "grad_norm": 1.0}
            if step % 10 == 0:
                signals["param_norm"] = 50.0 + noise
            if step > 350:
                signals["late"] = noise
            if step == 600:
                writer.event("resume", 550, last_step=599)
            writer.append(step if step < 600 else step - 50, signals, int(step >= 600), step)
    return directory


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "MAX_BYTES", 0)


def same(one: Column, other: Column) -> bool:
    return np.array_equal(one.present, other.present) and np.array_equal(
        one.values, other.values, equal_nan=True
    )


def assert_same(one: Block, other: Block) -> None:
    assert list(one.columns) == list(other.columns)
    for axis in ("step", "tick", "attempt", "data_position"):
        assert np.array_equal(getattr(one, axis), getattr(other, axis))
    assert one.events == other.events
    for name in other.columns:
        assert same(one.columns[name], other.columns[name]), name


def test_every_slice_has_the_same_values(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = read_journal(run).block
    monkeypatch.setattr(assembly, "MAX_BYTES", 0)
    stored = read_journal(run).block
    assert isinstance(stored.columns, StoredColumns)
    assert not isinstance(dense.columns, StoredColumns)
    assert_same(stored, dense)
    for rows in (slice(0, 0), slice(95, 105), slice(333, 690), slice(699, 700)):
        assert_same(stored[rows], dense[rows])
    assert_same(stored[100:600][50:450], dense[150:550])


def test_the_diagnosis_is_the_same(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = diagnose(run.root)
    monkeypatch.setattr(assembly, "MAX_BYTES", 0)
    stored = diagnose(run.root)
    assert stored.incidents
    assert stored.to_dict() == dense.to_dict()
    assert stored.to_markdown() == dense.to_markdown()


@pytest.mark.usefixtures("on_disk")
def test_a_signal_that_was_never_recorded_is_missing(run: RunDirectory) -> None:
    block = read_journal(run).block
    assert "lr" not in block.columns
    assert not block.column("lr").recorded
    with pytest.raises(KeyError):
        block.columns["lr"]


def test_damage_is_reported_and_costs_the_same(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JournalFiles(run.journal).sealed(2)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    JournalFiles(run.journal).sealed(4).unlink()
    dense = read_journal(run)
    monkeypatch.setattr(assembly, "MAX_BYTES", 0)
    stored = read_journal(run)
    assert stored.damage == dense.damage
    assert len(stored.damage) >= 2
    assert_same(stored.block, dense.block)


@pytest.mark.usefixtures("on_disk")
def test_few_columns_are_kept_in_memory(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.core.block.CACHE_BYTES", 9 * RECORDS)
    columns = read_journal(run).block.columns
    assert columns["loss"] is columns["loss"]
    before = columns["loss"]
    assert columns["late"] is not None
    assert columns["loss"] is not before
