"""Edits on purpose: the loops are healthy, and the measurement sees what it looks for."""

import pytest

pytest.importorskip("torch")

from benchmarks.attack.purpose import CONTROLS, Outcome, run_case, summary
from benchmarks.attack.purpose_cases import CASES


@pytest.mark.parametrize("name", ["gate doubled", "two of four", "tokens forbidden"])
def test_an_edit_stays_in_force_without_a_guard(name: str) -> None:
    assert run_case(name, "bare").in_force


def test_nothing_is_said_about_a_loop_without_an_edit() -> None:
    outcome = run_case("nothing, classifier", "recover")
    assert not outcome.undone
    assert not outcome.acts
    assert not outcome.incidents
    assert not outcome.certain + outcome.start_again + outcome.start_again_live + outcome.failures


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


def test_every_case_says_what_its_user_wants() -> None:
    for name, loop in (CASES | CONTROLS).items():
        assert loop.__doc__, name


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
