"""Answers carried out: their plans, and that a replayed run is the same run."""

from pathlib import Path

import numpy as np
import pytest
from tests.kit.cases import some_of

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.conftest import SMALL_BYTES

from trimtab.core.actions import ActionKind
from trimtab.core.signals import LOSS
from trimtab.lab.corpus.data import TokenCorpus
from trimtab.lab.practice.exercise import Exercise, PracticeAnswer, parse_answer
from trimtab.lab.practice.replay import AnswerPlan, ExerciseReplay, make_plan, no_remedy
from trimtab.lab.scenarios import scenario

STEPS = 48


def plan(kind: str, answer: str, seed: int = 3) -> tuple[Exercise, AnswerPlan]:
    exercise = Exercise.from_kind(kind, seed)
    return exercise, make_plan(parse_answer(answer, exercise), exercise, exercise.intervention())


@pytest.mark.parametrize("kind", ["F02", "F13w", "F24"])
@pytest.mark.parametrize("answer", ["wait", "lower 3"])
def test_continuing_costs_steps_from_the_decision_on_and_keeps_the_fault(
    kind: str, answer: str
) -> None:
    exercise, planned = plan(kind, answer)
    assert (planned.start, planned.cost_from) == (exercise.last_good, exercise.decision_step)
    assert planned.fault is not None


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
        ("F02", "skip", True),  # it stays with its batches
        ("F02", "quarantine", False),
        ("F04", "skip", True),
        ("F04", "quarantine", False),
        ("cooldown", "roll back", True),
    ],
)
def test_the_origin_of_a_fault_decides_what_a_restart_does(
    kind: str, answer: str, is_left: bool
) -> None:
    exercise, planned = plan(kind, answer)
    assert (planned.fault is not None) is is_left
    assert planned.cost_from <= exercise.decision_step


def test_a_checkpoint_that_is_too_new_holds_what_happened_once() -> None:
    exercise = Exercise.from_kind("F03", 3)
    newest = exercise.checkpoints[-1]
    assert newest > exercise.onset, "or this shows nothing"
    back = PracticeAnswer(kind=ActionKind.ROLL_BACK, number=newest)
    planned = make_plan(back, exercise, exercise.intervention())
    assert (planned.start, planned.cost_from, planned.fault) == (newest, newest, None)


@pytest.fixture(scope="module")
def cache(corpus: TokenCorpus) -> Path:
    return corpus.folder.parents[1]


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "CORPUS_BYTES", SMALL_BYTES)


@pytest.mark.parametrize("kind", some_of(["F07", "F18"], "F18"))
def test_a_run_replayed_from_a_checkpoint_is_the_same_run(
    kind: str, tmp_path: Path, cache: Path
) -> None:
    # F07 changes a setting, F18 remembers weights: nothing of either is in a checkpoint.
    exercise = Exercise.from_kind(kind, 3, STEPS)
    replay = ExerciseReplay(exercise, tmp_path / "run", cache_dir=cache)
    again = make_plan(PracticeAnswer(kind=ActionKind.WAIT), exercise, exercise.intervention())
    outcome, block = replay._train_from(again.start, replay._fault, no_remedy)
    waited = replay.carry_out(PracticeAnswer(kind=ActionKind.WAIT))
    assert outcome.eval_loss == waited.eval_loss
    whole = replay.run.column(LOSS).values[-len(block) :]
    np.testing.assert_array_equal(block.column(LOSS).values, whole)
    assert replay.run.step[-1] == STEPS - 1
    assert replay.shown.step[-1] == exercise.decision_step - 1


@pytest.mark.slow
def test_a_nan_is_lost_by_waiting_and_kept_out_by_discarding(tmp_path: Path, cache: Path) -> None:
    exercise = Exercise.from_kind("F12", 3, STEPS)
    replay = ExerciseReplay(exercise, tmp_path / "run", cache_dir=cache)
    results = {
        text: replay.carry_out(parse_answer(text, exercise)) for text in ("wait", "discard", "stop")
    }
    assert np.isnan(results["wait"].eval_loss)
    assert results["discard"].eval_loss < replay.stakes.loss_before
    assert results["discard"].steps == STEPS - exercise.last_good
    assert results["stop"].eval_loss == replay.stakes.loss_before
    assert results["stop"].steps == 0
    assert replay.truth["data_positions"][0] == exercise.onset
