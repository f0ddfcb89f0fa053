"""A flipped weight in each trainer: the run finds it and returns, with the same bits."""

from pathlib import Path

import pytest
from tests.kit.trainer_jobs.job import BAD, Job, lost_and_repeated
from tests.kit.trainer_jobs.runs import RUNS
from tests.live.recover.test_controller import acts

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerator"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # of torchdata
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]
TRAINERS = ["Accelerate", "Lightning", pytest.param("Trainer", marks=pytest.mark.slow)]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_flipped_weight_leaves_the_bits_of_the_run_without_it(
    trainer: str, tmp_path: Path
) -> None:
    clean = RUNS[trainer](Job(folder=tmp_path / "clean", seed=1))
    flipped = RUNS[trainer](Job(folder=tmp_path / "flip", seed=1, fault="flip"))
    assert acts(tmp_path / "clean" / "run") == []
    assert acts(tmp_path / "flip" / "run") == ["restore"]
    assert flipped == clean
    assert lost_and_repeated(tmp_path / "flip" / "run") == (set(), 0)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", RUNS)
def test_skipped_batches_are_left_out_and_no_others(trainer: str, tmp_path: Path) -> None:
    RUNS[trainer](Job(folder=tmp_path, seed=1, fault="skip"))
    assert lost_and_repeated(tmp_path / "run") == (set(BAD), 0)
