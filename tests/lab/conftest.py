"""Fixtures: a corpus small enough for every test, built once, and runs on it."""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lab.observing import Bench

    from trimtab.lab.corpus.data import TokenCorpus
    from trimtab.lab.scenarios.scenario import Scenario

PACKAGES = ("torch", "tokenizers")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, PACKAGES)) else ["*"]


@pytest.fixture(scope="session", autouse=True)
def library() -> None:
    """List the files of Python's library once; each run would do it, in a third of its time."""
    from trimtab.lab.corpus import text, tokens

    vars(tokens)["library_files"] = functools.cache(text.library_files)


SMALL_BYTES = 400_000
"""Source text of the tests' corpus: 1/30 of the library, with all four sources."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> "TokenCorpus":
    from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus

    return prepare_corpus(
        CorpusConfig(vocab_size=512, max_bytes=SMALL_BYTES),
        cache_dir=tmp_path_factory.mktemp("cache"),
    )


@pytest.fixture(scope="session")
def cache(corpus: "TokenCorpus") -> Path:
    """Where the trainer finds that corpus."""
    return corpus.folder.parents[1]


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trials")


@pytest.fixture
def trial(
    trials: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> "Callable[[Scenario], Path]":
    """Runs a scenario on the small corpus, or reuses the run of an earlier test."""
    from trimtab.lab.scenarios import scenario
    from trimtab.lab.scenarios.suite import run_trial

    monkeypatch.setattr(scenario, "CORPUS_BYTES", SMALL_BYTES)
    return lambda wanted: run_trial(wanted, trials, cache_dir=cache)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> "Bench":
    """Trains short runs with a fault and records what the loop sees."""
    from tests.lab.observing import Bench

    return Bench(tmp_path_factory.mktemp("bench"), cache)
