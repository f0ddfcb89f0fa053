"""When a checkpoint is due by the clock, and which ones stay."""

import dataclasses
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from trimtab.core.errors import ConfigError
from trimtab.journal.checkpoints.index import FAR_STEPS, CheckpointEntry, CheckpointIndex, Verdict
from trimtab.journal.checkpoints.manifest import CheckpointFacts
from trimtab.state.checkpoints.cadence import Cadence
from trimtab.state.checkpoints.store import Ranks


class Asked(Ranks):
    """Counts how often the first rank is asked."""

    num = 0

    def first(self, action: Any) -> Any:
        self.num += 1
        return action()


@pytest.mark.parametrize("step_seconds", [0.01, 1.0, 400.0])
def test_by_the_clock_all_ranks_ask_the_first_one_and_seldom(
    step_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ranks = Asked()
    made = Cadence(ranks, None, 1800.0)
    saved = []
    steps = round(3 * 1800 / step_seconds) + 3
    for step in range(1, steps + 1):
        now += step_seconds
        if made.is_due(step):
            saved.append(now)
            made.note_save(step, now)
    intervals = [later - earlier for earlier, later in pairwise(saved)]
    assert len(saved) >= 2
    assert all(1800 <= interval <= 1800 + max(2 * step_seconds, 1.0) for interval in intervals)
    assert ranks.num <= 25 * (len(saved) + 1)


def test_a_cadence_must_be_positive_and_is_off_by_default() -> None:
    with pytest.raises(ConfigError, match="every_seconds"):
        Cadence(Ranks(), None, 0.0)
    assert not Cadence(Ranks(), None, None).is_due(10**9)


def test_one_proven_checkpoint_is_always_far_behind_and_never_very_far(tmp_path: Path) -> None:
    index = CheckpointIndex(tmp_path)
    for step in range(100, 6000, 100):
        facts = CheckpointFacts(
            step=step, data_position=0, attempt=0, world=1, num_bytes=0, fault=""
        )
        entry = CheckpointEntry(folder=f"step-{step}", facts=facts)
        # Proven are those with a save or more after them.
        index.entries = [*map(prove, index.entries), entry]
        spare = {entry.folder for entry in index.spare(3)}
        index.entries = [entry for entry in index.entries if entry.folder not in spare]
        proven = [e.step for e in index.entries if e.verdict is Verdict.PROVEN]
        assert len(index.entries) <= 6
        if step > FAR_STEPS + 200:
            far = max(s for s in proven if s <= step - FAR_STEPS)
            assert step - far <= 2 * FAR_STEPS + 300


def prove(entry: CheckpointEntry) -> CheckpointEntry:
    return dataclasses.replace(entry, verdict=Verdict.PROVEN)
