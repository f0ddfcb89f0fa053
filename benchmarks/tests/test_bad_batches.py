"""Bad batches that are in the text of the lab."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from benchmarks.detect import bad_batches
from benchmarks.detect.bad_batches import bad_steps_of, follows_bad_batch, is_bad

from trimtab.lab.corpus.data import DataConfig, WindowDataset
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.scenarios import scenario
from trimtab.lab.scenarios.scenario import Scenario

BYTES = 400_000


def test_a_row_of_which_nine_tenths_are_one_token_is_bad() -> None:
    assert is_bad(np.array([7] * 36 + [1, 2, 3, 4]))
    assert not is_bad(np.array([7] * 35 + [1, 2, 3, 4, 5]))


def test_only_what_begins_within_three_steps_is_an_answer_to_a_bad_batch() -> None:
    answers = [onset for onset in range(195, 210) if follows_bad_batch(onset, (201, 500))]
    assert answers == [201, 202, 203, 204]


def test_bad_batches_are_those_that_the_run_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_batches, "SHARE", 0.3)  # the small corpus has no row over 0.9
    monkeypatch.setattr(scenario, "CORPUS_BYTES", BYTES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clean = Scenario(kind="clean", seed=3, steps=400)
    bad = bad_steps_of(clean)
    config = clean.config()
    windows = DataConfig(batch_size=config.batch_size, length=config.length, seed=config.seed)
    data = WindowDataset(prepare_corpus(CorpusConfig(vocab_size=512, max_bytes=BYTES)), windows)
    rows = [data[step].tokens.numpy() for step in range(400)]
    assert bad
    assert bad == tuple(step for step in range(400) if any(map(is_bad, rows[step])))
    # A ramp serves fewer rows at first: it cannot meet more of them.
    assert set(bad_steps_of(Scenario(kind="batch-ramp", seed=3, steps=400))) <= set(bad)
