"""What each remedy does to a run, seen in its journal."""

from pathlib import Path

import numpy as np
import pytest
from tests.kit.cases import some_of

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.training import journal, per_step, small

from trimtab.core.actions import ActionKind
from trimtab.core.config import Config
from trimtab.lab.corpus.data import TokenCorpus
from trimtab.lab.faults.machine_faults import GradientBitFlip
from trimtab.lab.faults.training_faults import LogicNan
from trimtab.lab.practice.exercise import PracticeAnswer
from trimtab.lab.practice.replay import (
    ChangeRun,
    RemedyAndFault,
    discard_outliers,
    lower_lr_from,
    no_remedy,
    roll_back_with,
    skip_batches,
)
from trimtab.lab.trainer.intervention import Intervention
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype

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
