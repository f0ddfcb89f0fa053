"""Edits on purpose: the measurement sees what it looks for."""

import pytest

pytest.importorskip("torch")

from benchmarks.attack.purpose import run_case


def test_an_undo_is_seen_where_there_is_one() -> None:
    outcome = run_case("a flipped bit", "recover")
    assert outcome.undone == 1
    assert outcome.certain
    assert not outcome.in_force
