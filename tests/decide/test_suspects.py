"""A source or a rank is named only where the evidence is of that one alone."""

import dataclasses
from pathlib import Path

import pytest
from tests.decide.test_ladder import LIMITS, look, situation

from trimtab.core.findings import Symptom
from trimtab.decide.ladder import DecisionLog, decide, recompute
from trimtab.decide.situation import Act
from trimtab.decide.suspects import suspect_rank, suspect_source

MIX = ["web", "code", "web", "books"] * 8


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (["bad"] * 8, "bad"),
        (["bad", "web"] * 4, "bad"),
        (["bad", "web", "code", "web", "books", "web", "web", "web"], None),  # one batch
        (["web"] * 8, None),  # common before, and it did no harm
        (["books"] * 3, None),  # too few to say
        ([None] * 8, None),
        ([], None),
    ],
)
def test_a_source_is_suspected_if_it_came_with_the_trouble(
    since: list[str | None], expected: str | None
) -> None:
    assert suspect_source(MIX, since) == expected


def test_nothing_is_suspected_if_nothing_is_known_from_before() -> None:
    assert suspect_source([], ["bad"] * 8) is None


@pytest.mark.parametrize(
    ("named", "world", "expected"),
    [
        ([1] * 12, 2, 1),
        ([1] * 6, 2, None),  # one of two ranks, six times: by chance in 1 of 32 cases
        ([5] * 5, 64, 5),
        ([5, 5, 5, 2, 5, 5, 5], 64, 5),  # a hard batch on a different rank
        ([1, 0] * 20, 2, None),
        ([], 8, None),
        ([0] * 50, 1, None),
    ],
)
def test_a_rank_is_suspected_if_odd_steps_name_it_more_often_than_chance(
    named: list[int], world: int, expected: int | None
) -> None:
    assert suspect_rank(named, world) == expected


def test_harm_by_a_source_quarantines_it_rather_than_skipping_batches() -> None:
    found = look(probe=0.5, waited=32, probe_waited=32, onset=180, source="bad")
    assert found.act is Act.QUARANTINE
    assert "source bad" in found.reason
    assert found.chosen.target is not None
    other = look(probe=0.5, waited=32, probe_waited=32, onset=180)
    assert other.act is not Act.QUARANTINE


def test_a_healthy_reading_quarantines_nothing() -> None:
    found = look(Symptom.LOSS_SPIKE, probe=-0.12, waited=9, probe_waited=8, source="bad")
    assert found.act is Act.WAIT


def test_a_corrupted_rank_ends_the_run_for_a_relaunch_without_it() -> None:
    found = look(Symptom.GRADIENT_SPIKE, suspect_rank=3, relaunches_left=1)
    assert (found.act, found.exit_code) == (Act.RELAUNCH, 75)
    assert "rank 3 differs from the others" in found.reason
    late = look(Symptom.GRADIENT_SPIKE, suspect_rank=3, relaunches_left=1, onset=110)
    assert late.act is Act.RELAUNCH  # from the last checkpoint, not from before the onset


def test_a_corrupted_rank_does_not_end_a_run_that_nothing_starts_again() -> None:
    assert look(Symptom.GRADIENT_SPIKE, suspect_rank=3).act is Act.WAIT
    tried = look(Symptom.GRADIENT_SPIKE, suspect_rank=3, relaunches_left=1, tried=(Act.RELAUNCH,))
    assert tried.act is Act.WAIT


def test_decisions_with_suspects_are_computed_again_alike(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl", LIMITS)
    for one in (
        situation(Symptom.GRADIENT_SPIKE, suspect_rank=3, relaunches_left=1),
        dataclasses.replace(situation(probe=0.5, waited=32, onset=180), source="bad"),
    ):
        log.append(one, decide(one, LIMITS))
    assert recompute(tmp_path / "decisions.jsonl") == (2, [])
