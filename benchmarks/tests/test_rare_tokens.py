"""Rare tokens of a real corpus."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from benchmarks.rare_tokens import rare_tail

from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus


def test_the_tail_has_the_tokens_below_the_limit(tmp_path: Path) -> None:
    corpus = prepare_corpus(CorpusConfig(vocab_size=512, max_bytes=400_000), cache_dir=tmp_path)
    tail, counts = rare_tail(corpus), corpus.counts()
    assert len(tail.rare) > 5
    assert ((counts[tail.rare] > 0) & (counts[tail.rare] < 10)).all()
    assert tail.occurrences == counts[tail.rare].sum()
    assert (counts[tail.never] == 0).all()
    assert len(rare_tail(corpus, below=100).rare) > len(tail.rare)
