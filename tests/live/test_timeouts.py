"""An exchange that fails decides nothing: replicas and shards never part in silence."""

from pathlib import Path

import pytest
from tests.kit.cases import some_of
from tests.kit.late_ranks import (
    OUTER_STEPS,
    LateSchedule,
    broken_promise,
    follow_late_schedule,
    inner_steps,
    local_sgd,
)
from tests.kit.launch import run_ranks
from tests.kit.tiny import journal_of

SCHEDULES = {
    "the loss of one replica": LateSchedule(
        engine="replicas", mode="protect", world=2, late_rank=0, bad_rank=1, numbers="loss"
    ),
    "the gradient of one shard": LateSchedule(
        engine="fsdp2", mode="protect", world=2, late_rank=0, bad_rank=1, numbers="gradient"
    ),
    "the rank that is late": LateSchedule(
        engine="ddp", mode="recover", world=2, late_rank=1, bad_rank=1, numbers="loss"
    ),
}
"""What is not a number at the step at which a rank comes later than the others wait."""


@pytest.mark.parametrize(
    "name", some_of(SCHEDULES, "the gradient of one shard", "the rank that is late")
)
def test_a_rank_that_is_late_at_a_bad_step(name: str, tmp_path: Path) -> None:
    schedule = SCHEDULES[name]
    ends = follow_late_schedule(schedule, tmp_path)
    assert not broken_promise(schedule, ends), ends


@pytest.mark.parametrize("mode", some_of(["observe", "protect"], "protect"))
def test_ranks_that_step_unequally_often_record_alone(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What they wait; `scripts/bench attack timeouts` waits as long as users do.
    monkeypatch.setattr("trimtab.live.ranks.exchange.FIRST_SECONDS", 2.0)
    ends = run_ranks(local_sgd, 2, mode, tmp_path)
    assert all(end.is_same for end in ends)
    assert max(end.seconds for end in ends) < 15
    assert [end.updates for end in ends] == [OUTER_STEPS * inner_steps(rank) for rank in range(2)]
    assert len(journal_of(tmp_path)) == ends[0].updates
    said = [len(end.log) for end in ends]
    assert max(said) == 1, ends
