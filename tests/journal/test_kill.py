"""A writer may be killed at any moment: what is older than a second is safe."""

from pathlib import Path

import pytest
from tests.kit.journal_rows import rows_of
from tests.kit.killed_writers import kill_writers, signals_at

from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.journal.writer import JournalLimits

BOUND = 0.5
"""Seconds: half of what is promised."""


@pytest.mark.parametrize("kills", [8, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_what_is_older_than_a_second_survives_a_kill(tmp_path: Path, kills: int) -> None:
    results = kill_writers(tmp_path, kills, at_once=8)
    assert len(results) == kills
    assert sum(result.records for result in results) > 50 * kills, "the children did write"
    oldest = max(result.oldest_lost for result in results)
    assert oldest < BOUND, f"a record of {oldest:.2f} s before the kill was lost"
    for number in range(0, kills, 10):
        _assert_goes_on(RunDirectory(tmp_path / f"{number:03d}"))


def _assert_goes_on(run: RunDirectory) -> None:
    """The next writer goes on after the last tick, and seals what the killed one left."""
    before = read_journal(run)
    last = int(before.block.tick[-1])
    with JournalWriter(run, JournalLimits(close_seconds=120)) as writer:
        assert writer.append(last + 1, signals_at(last + 1), data_position=-1) == last + 1
    assert writer.error is None
    assert not list(run.journal.glob("*.log"))
    after = read_journal(run)
    assert rows_of(after.block[: len(before.block)]) == rows_of(before.block)
    assert after.damage == before.damage
    assert after.ended == "closed"
