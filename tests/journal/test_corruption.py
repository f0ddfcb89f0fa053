"""Damaged files: never a crash, never a wrong number, never a loss that is not told."""

import random
import shutil
import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.journal.damaging import (
    EVENTS,
    RECORDS,
    SEALED,
    SIGNALS,
    Mask,
    Truth,
    Wound,
    may_be_lost,
    wound,
)
from tests.kit.cases import one_of_each, some_of

from trimtab.core.block import Block
from trimtab.journal import Damage, Follower, JournalRun, RunDirectory, read_journal

WOUNDS = (
    "bit flip",
    "zeroed page",
    "random bytes",
    "truncation",
    "deleted range",
    "duplicated range",
)
FILES = {"00000000.seg": 0, "00000001.seg": SEALED, "00000002.log": 2 * SEALED}
"""The tick with which each file begins."""


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


@pytest.fixture(scope="module")
def healthy(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = RunDirectory(tmp_path_factory.mktemp("healthy"))
    truth.write(run)
    return run


def test_the_healthy_journal_is_all_there(truth: Truth, healthy: RunDirectory) -> None:
    reading = read_journal(healthy)
    assert reading.damage == ()
    assert len(reading.block) == RECORDS
    assert len(reading.block.events) == len(EVENTS)
    assert_true(truth, reading.block)


@pytest.mark.parametrize(("kind", "file"), one_of_each(product(WOUNDS, FILES)))
@pytest.mark.parametrize("trials", some_of([6, 500], 6))
def test_damage_is_reported_and_costs_only_itself(
    truth: Truth, healthy: RunDirectory, tmp_path: Path, kind: str, file: str, trials: int
) -> None:
    original = healthy.journal / file
    run = RunDirectory(tmp_path / "hurt")
    shutil.copytree(healthy.root, run.root)
    for trial in range(trials):
        shutil.copy(original, run.journal / file)
        rng = random.Random(zlib.crc32(f"{kind} {file} {trial}".encode()))
        hurt = wound(kind, run.journal / file, rng)
        reading = read_journal(run)
        context = f"{kind} of {file}, trial {trial}, bytes {hurt.first} to {hurt.stop}"
        check(truth, reading, original, hurt, context)
        with Follower(run) as follower:
            assert_true(truth, follower.poll())


def check(truth: Truth, reading: JournalRun, original: Path, hurt: Wound, context: str) -> None:
    block = reading.block
    assert_true(truth, block)
    rows_read = np.zeros(RECORDS, dtype=np.bool_)
    rows_read[block.tick] = True
    rows_allowed, values_allowed = may_be_lost(original, hurt, FILES[original.name])
    assert (rows_read | rows_allowed).all(), f"lost more records than were hit: {context}"
    told = told_ticks(reading.damage, block, original.name)
    # A log that ends early at the end of a line looks like one whose writer was killed there.
    silent = hurt.is_cut_to_end and original.suffix == ".log" and cut_at_a_line(original, hurt)
    for name in SIGNALS:
        read = rows_read.copy()
        read[block.tick] = block.column(name).present
        lost = truth.present[name] & ~read
        allowed = rows_allowed | values_allowed[name]
        assert not (lost & ~allowed).any(), f"lost more of {name} than was hit: {context}"
        assert silent or not (lost & ~told[name]).any(), f"a loss of {name} is not told: {context}"
    if len(block.events) < len(EVENTS):
        assert silent or reading.damage, f"a lost event is not told: {context}"


def assert_true(truth: Truth, block: Block) -> None:
    """Everything that was read is what was written there."""
    tick = block.tick
    assert (block.step == truth.step[tick]).all()
    assert (block.attempt == truth.attempt[tick]).all()
    assert (block.data_position == truth.position[tick]).all()
    assert set(block.columns) <= set(SIGNALS)
    for name, column in block.columns.items():
        here = column.present
        assert truth.present[name][tick][here].all()
        expected = truth.values[name][tick][here]
        assert np.array_equal(column.values[here].view(np.uint64), expected.view(np.uint64))
    events = [(event.kind, event.tick, event.step, event.facts["tick"]) for event in block.events]
    assert all(kind == "seen" and len({*rest}) == 1 for kind, *rest in events)
    ticks = [tick for _, tick, *_ in events]
    assert sorted(set(ticks)) == ticks
    assert set(ticks) <= set(EVENTS)


def told_ticks(damage: Sequence[Damage], block: Block, file: str) -> dict[str, Mask]:
    """The ticks of each signal that some damage accounts for."""
    told = {name: np.zeros(RECORDS, dtype=np.bool_) for name in SIGNALS}
    for found in damage:
        if found.ticks is not None:
            span = slice(found.ticks[0], found.ticks[1] + 1)
        else:  # where the ticks are not known, it can only speak for what comes after all others
            assert found.file in (file, "journal")
            span = slice(int(block.tick[-1]) + 1 if len(block) else 0, RECORDS)
        for name in SIGNALS if found.signal is None else [found.signal]:
            told[name][span] = True
    return told


def cut_at_a_line(original: Path, hurt: Wound) -> bool:
    return hurt.first == 0 or original.read_bytes()[hurt.first - 1 : hurt.first] == b"\n"
