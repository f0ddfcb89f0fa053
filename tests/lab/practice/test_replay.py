"""Answers carried out: what each remedy does, and that a replayed run is the same run."""

from pathlib import Path

import numpy as np
import pytest
from tests.kit.cases import some_of
from tests.lab.conftest import SMALL_BYTES
from tests.lab.training import journal, per_step, small

from trimtab.core.actions import ActionKind
from trimtab.core.config import Config
from trimtab.core.signals import LOSS
from trimtab.lab.corpus.data import TokenCorpus
from trimtab.lab.faults.machine_faults import GradientBitFlip
from trimtab.lab.faults.training_faults import LogicNan
from trimtab.lab.practice.exercise import Exercise, PracticeAnswer, parse_answer
from trimtab.lab.practice.replay import (
    AnswerPlan,
    ChangeRun,
    ExerciseReplay,
    RemedyAndFault,
    discard_outliers,
    lower_lr_from,
    make_plan,
    no_remedy,
    roll_back_with,
    skip_batches,
)
from trimtab.lab.scenarios import scenario
from trimtab.lab.trainer.intervention import Intervention
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype

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


ONSET = 6
EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})


class Bench:
    """Trains small runs, each with one remedy."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._cache = cache

    def run(
        self,
        remedy: ChangeRun = no_remedy,
        fault: Intervention | None = None,
        dtype: Dtype = Dtype.FP32,
    ) -> tuple[Path, float]:
        run_dir = self._folder / f"run-{len(list(self._folder.iterdir()))}"
        intervention = RemedyAndFault(onset=0, severity=0.0, seed=0, remedy=remedy, fault=fault)
        config = small(dtype=dtype, eval_steps=100, checkpoint_steps=100)
        outcome = train(
            config,
            run_dir,
            cache_dir=self._cache,
            guard_config=EVERY_STEP,
            intervention=intervention,
        )
        return run_dir, outcome.eval_loss


@pytest.fixture
def bench(tmp_path: Path, corpus: TokenCorpus) -> Bench:
    return Bench(tmp_path, corpus.folder.parents[1])


def test_skipped_batches_are_never_seen(bench: Bench) -> None:
    plain, _ = bench.run()
    skipped, _ = bench.run(skip_batches(4))
    seen = list(per_step(journal(plain), "fingerprint").values())
    assert list(per_step(journal(skipped), "fingerprint").values())[:8] == seen[4:]


def test_the_lr_is_lowered_from_a_step_on_and_the_schedule_continues(bench: Bench) -> None:
    plain = per_step(journal(bench.run()[0]), "lr")
    lowered = per_step(journal(bench.run(lower_lr_from(4.0, ONSET))[0]), "lr")
    for step, rate in plain.items():
        assert lowered[step] == pytest.approx(rate / (4 if step >= ONSET else 1))


def test_a_rollback_discards_the_data_of_its_steps_and_lowers_the_rate(bench: Bench) -> None:
    end = ONSET + 2
    answer = PracticeAnswer(
        kind=ActionKind.ROLL_BACK, number=ONSET - 2, skip=(ONSET, end), lr_factor=0.25
    )
    plain, changed = (journal(bench.run(*given)[0]) for given in ((), (roll_back_with(answer),)))
    sizes, rates = per_step(changed, "update_norm"), per_step(changed, "lr")
    assert {step for step, size in sizes.items() if size == 0.0} == set(range(ONSET, end))
    for step, rate in per_step(plain, "lr").items():
        assert rates[step] == pytest.approx(rate / (4 if step >= ONSET - 2 else 1))


@pytest.mark.parametrize("dtype", some_of([Dtype.FP32, Dtype.FP16], Dtype.FP32))
def test_an_update_that_is_not_finite_is_discarded(bench: Bench, dtype: Dtype) -> None:
    def nan_loss() -> LogicNan:
        return LogicNan(onset=ONSET, severity=0.0, seed=0)

    if dtype is Dtype.FP32:  # in fp16 the scaler already skips such a step
        assert np.isnan(bench.run(fault=nan_loss())[1])
    run_dir, loss = bench.run(discard_outliers, nan_loss(), dtype)
    assert np.isfinite(loss)
    losses = per_step(journal(run_dir), "loss")
    assert [step for step, value in losses.items() if np.isnan(value)] == [ONSET]


def test_a_gradient_that_is_far_too_large_is_discarded_and_no_other(bench: Bench) -> None:
    flip = GradientBitFlip(onset=ONSET, severity=1.0, seed=0)
    run_dir, _ = bench.run(discard_outliers, flip)
    moved = per_step(journal(run_dir), "adam_step")
    healthy = per_step(journal(bench.run(discard_outliers)[0]), "adam_step")
    assert flip.truth["bit"] == 30
    assert healthy[11] - moved[11] == 1
