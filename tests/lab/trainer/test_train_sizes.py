"""The larger models, trained; minutes each."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.lab.training import journal

from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype, Engine, TrainConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]

X1: dict[str, Any] = {
    "model": SIZES["x1"],
    "steps": 3,
    "batch_size": 4,
    "length": 32,
    "corpus_bytes": 2**21,
    "eval_batches": 1,
}
"""Few tokens: the test only checks that it runs, and 600 MB of state take long enough."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    wanted = CorpusConfig(vocab_size=SIZES["x1"].vocab_size, max_bytes=X1["corpus_bytes"])
    prepare_corpus(wanted, cache_dir=folder)
    return folder


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.BF16])
def test_a_healthy_10m_run_learns_two_nats_in_300_steps(
    dtype: Dtype, tmp_path: Path, cache: Path
) -> None:
    config = TrainConfig(model=SIZES["10M"], steps=300, dtype=dtype, length=64)
    outcome = train(config, tmp_path, cache_dir=cache)
    losses = journal(tmp_path).column("loss").values
    assert losses[0] == pytest.approx(math.log(8192), abs=0.2)
    assert float(np.mean(losses[-20:])) < math.log(8192) - 2
    assert outcome.eval_loss < math.log(8192) - 2


@pytest.mark.parametrize("dtype", list(Dtype))
def test_x1_runs_in_every_dtype(dtype: Dtype, tmp_path: Path, cache: Path) -> None:
    train(TrainConfig(**X1, dtype=dtype), tmp_path, cache_dir=cache)
    _assert_three_steps(tmp_path)


def _train(rank: int, settings: dict[str, Any], run_dir: Path, cache: Path) -> None:
    train(TrainConfig(**settings), run_dir, cache_dir=cache)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize(("engine", "world"), [(Engine.FSDP2, 2), (Engine.HSDP, 4)])
def test_x1_runs_on_ranks(
    engine: Engine, world: int, dtype: Dtype, tmp_path: Path, cache: Path
) -> None:
    run_ranks(_train, world, X1 | {"engine": engine, "dtype": dtype}, tmp_path, cache)
    _assert_three_steps(tmp_path)


def _assert_three_steps(run_dir: Path) -> None:
    losses = journal(run_dir).column("loss").values
    assert len(losses) == 3
    assert losses == pytest.approx(math.log(8192), abs=0.5)
