"""Answers carried out: what is planned, and that a run which is told again is the same run."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.conftest import SMALL_BYTES

from trimtab.core.actions import ActionKind
from trimtab.core.signals import LOSS
from trimtab.lab.corpus.shards import TokenCorpus
from trimtab.lab.practice.answers import Answer, parse_answer
from trimtab.lab.practice.exercise import Exercise
from trimtab.lab.practice.rehearsal import Plan, Rehearsal, make_plan
from trimtab.lab.practice.treatment import leave_alone
from trimtab.lab.scenarios import scenario

STEPS = 48


def plan(kind: str, answer: str, seed: int = 3) -> tuple[Exercise, Plan]:
    exercise = Exercise.of_kind(kind, seed)
    return exercise, make_plan(parse_answer(answer, exercise), exercise, exercise.disturbance())


@pytest.mark.parametrize("kind", ["F02", "F13w", "F24"])
@pytest.mark.parametrize("answer", ["wait", "lower 3"])
def test_who_goes_on_pays_from_the_question_on_and_keeps_the_fault(kind: str, answer: str) -> None:
    exercise, told = plan(kind, answer)
    assert (told.start, told.paid_from) == (exercise.last_good, exercise.asked)
    assert told.fault is not None


@pytest.mark.parametrize(
    ("kind", "answer", "is_left"),
    [
        ("F24", "roll back", True),
        ("F24", "quarantine", True),
        ("F24", "discard", True),
        ("F13w", "roll back", False),
        ("F13w", "skip", False),
        ("F02", "roll back", True),
        ("F02", "discard", True),
        ("F02", "skip", False),
        ("F02", "quarantine", False),
        ("F04", "skip", True),
        ("F04", "quarantine", False),
        ("cooldown", "roll back", True),
    ],
)
def test_where_a_fault_lives_decides_what_a_restart_leaves_of_it(
    kind: str, answer: str, is_left: bool
) -> None:
    exercise, told = plan(kind, answer)
    assert (told.fault is not None) is is_left
    assert told.paid_from <= exercise.asked


def test_too_few_skipped_batches_bring_the_bad_ones_earlier() -> None:
    exercise, told = plan("F02", "skip 2")
    assert told.fault is not None
    assert told.fault.onset == exercise.onset - 2
    bad = exercise.disturbance().end
    assert bad is not None
    _, none = plan("F02", f"skip {bad - exercise.last_good}")
    assert none.fault is None
    _, last = plan("F02", f"skip {bad - exercise.last_good - 1}")
    assert last.fault is not None
    assert last.fault.covers(exercise.last_good)


def test_a_checkpoint_that_is_too_new_holds_what_happened_once() -> None:
    exercise = Exercise.of_kind("F03", 3)
    newest = exercise.checkpoints[-1]
    assert newest > exercise.onset, "or this shows nothing"
    back = Answer(kind=ActionKind.ROLL_BACK, number=newest)
    told = make_plan(back, exercise, exercise.disturbance())
    assert (told.start, told.paid_from, told.fault) == (newest, newest, None)


@pytest.fixture(scope="module")
def cache(corpus: TokenCorpus) -> Path:
    return corpus.folder.parents[1]


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "CORPUS_BYTES", SMALL_BYTES)


@pytest.mark.parametrize("kind", ["F07", "F18"])
def test_a_run_that_is_told_again_from_a_checkpoint_is_the_same_run(
    kind: str, tmp_path: Path, cache: Path
) -> None:
    # F07 changes a setting, F18 remembers weights: nothing of either is in a checkpoint.
    exercise = Exercise.of_kind(kind, 3, STEPS)
    rehearsal = Rehearsal(exercise, tmp_path / "run", cache_dir=cache)
    again = make_plan(Answer(kind=ActionKind.WAIT), exercise, exercise.disturbance())
    outcome, block = rehearsal._go_on(again.start, rehearsal._fault, leave_alone)
    waited = rehearsal.carry_out(Answer(kind=ActionKind.WAIT))
    assert outcome.eval_loss == waited.eval_loss
    whole = rehearsal.run.column(LOSS).values[-len(block) :]
    np.testing.assert_array_equal(block.column(LOSS).values, whole)
    assert rehearsal.run.step[-1] == STEPS - 1
    assert rehearsal.shown.step[-1] == exercise.asked - 1


def test_a_nan_is_lost_by_waiting_and_kept_out_by_discarding(tmp_path: Path, cache: Path) -> None:
    exercise = Exercise.of_kind("F12", 3, STEPS)
    rehearsal = Rehearsal(exercise, tmp_path / "run", cache_dir=cache)
    results = {
        text: rehearsal.carry_out(parse_answer(text, exercise))
        for text in ("wait", "discard", "skip 20", "stop")
    }
    assert np.isnan(results["wait"].eval_loss)
    for text in ("discard", "skip 20"):
        assert results[text].eval_loss < rehearsal.stakes.loss_before
        assert results[text].steps == STEPS - exercise.last_good
    assert results["stop"].eval_loss == rehearsal.stakes.loss_before
    assert results["stop"].steps == 0
    assert rehearsal.truth["data_positions"][0] == exercise.onset
