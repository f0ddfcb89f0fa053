"""A corpus that is small enough for every test, made once."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trimtab.lab.shards import TokenCorpus

SMALL_BYTES = 400_000
"""Source text of the tests' corpus; 1/30 of the library, all four sources in it."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> "TokenCorpus":
    for package in ("torch", "tokenizers", "torchdata"):
        pytest.importorskip(package)
    from trimtab.lab.tokens import CorpusConfig, prepare_corpus

    return prepare_corpus(
        CorpusConfig(vocab_size=512, max_bytes=SMALL_BYTES),
        cache_dir=tmp_path_factory.mktemp("cache"),
    )
