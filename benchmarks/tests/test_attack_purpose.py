"""Edits on purpose: the loops are healthy, and the measurement sees what it looks for."""

import pytest

pytest.importorskip("torch")

from benchmarks.attack.purpose import Outcome, run_case, summary


def test_an_undo_is_seen_where_there_is_one() -> None:
    outcome = run_case("a flipped bit", "recover")
    assert outcome.undone == 1
    assert outcome.certain
    assert not outcome.in_force


def test_a_scalar_that_is_doubled_on_purpose_stays_doubled() -> None:
    outcome = run_case("gate doubled", "recover")
    assert outcome.in_force
    assert not outcome.undone
    assert not outcome.certain


def test_the_summary_counts_cases_and_not_modes() -> None:
    bare = {"a": Outcome(name="a", mode="bare", final_loss=1.0, in_force=True)}
    undone = [
        Outcome(name="a", mode=mode, final_loss=1.0, in_force=False, undone=2)
        for mode in ("recover", "protect")
    ]
    assert summary(undone, bare) == (
        "1 purposeful edits: undone 1, certain 0, start again 0 (in the log or journal 0), "
        "no longer in force 1"
    )
