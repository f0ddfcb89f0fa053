"""The cached corpus: round trip, reuse and damage."""

from pathlib import Path

import numpy as np
import pytest
from tests.lab.conftest import SMALL_BYTES

from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.data import CorpusSplit, TokenCorpus
from trimtab.lab.corpus.text import documents_of, library_files
from trimtab.lab.corpus.tokens import SEPARATOR_ID, CorpusConfig, default_cache, prepare_corpus

TINY = CorpusConfig(vocab_size=300, max_bytes=100_000)


def test_tokens_become_the_text_again(corpus: TokenCorpus) -> None:
    files = library_files(SMALL_BYTES)
    documents = [d for place, file in enumerate(files) for d in documents_of(file, place)]
    for split in CorpusSplit:
        for source, tokens in corpus.tokens(split).items():
            texts = [
                document.text
                for document in documents
                if document.source is source
                and document.held_out == (split is CorpusSplit.HELD_OUT)
            ]
            ends = np.flatnonzero(tokens == SEPARATOR_ID)
            pieces = np.split(tokens, ends + 1)[:-1]
            assert [corpus.tokenizer.decode(p[:-1].tolist()) for p in pieces] == texts


def modified(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_two_builds_are_equal_and_the_second_call_builds_nothing(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    first = prepare_corpus(
        TINY, cache_dir=tmp_path / "a", progress=lambda done, total: calls.append((done, total))
    )
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]
    second = prepare_corpus(TINY, cache_dir=tmp_path / "b")
    assert first.manifest == second.manifest
    before = modified(first.folder)
    prepare_corpus(TINY, cache_dir=tmp_path / "a")
    assert modified(first.folder) == before
    assert list((tmp_path / "a" / "tokens").iterdir()) == [first.folder]  # no draft is left


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with one corpus; a test that damages it builds it again."""
    folder = tmp_path_factory.mktemp("built")
    prepare_corpus(TINY, cache_dir=folder)
    return folder


@pytest.mark.parametrize("damage", ["flipped", "missing", "manifest", "not a folder"])
def test_a_damaged_cache_is_rebuilt(damage: str, built: Path) -> None:
    whole = prepare_corpus(TINY, cache_dir=built)
    shard = whole.folder / "train-code.npy"
    if damage == "flipped":
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    elif damage == "missing":
        shard.unlink()
    elif damage == "manifest":
        (whole.folder / "manifest.json").write_text('{"files": [')
    else:
        for path in whole.folder.iterdir():
            path.unlink()
        whole.folder.rmdir()
        whole.folder.write_text("?")
    assert TokenCorpus.load(whole.folder) is None
    again = prepare_corpus(TINY, cache_dir=built)
    assert again.manifest == whole.manifest
    assert list((built / "tokens").iterdir()) == [whole.folder]


def test_the_cache_is_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_cache() == Path("/var/cache/me/trimtab")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache() == Path.home() / ".cache" / "trimtab"


@pytest.mark.parametrize("vocab_size", [100, 70_000])
def test_an_impossible_vocabulary_is_an_error(vocab_size: int) -> None:
    with pytest.raises(ConfigError, match="vocab_size must be 257 to 65536"):
        CorpusConfig(vocab_size=vocab_size)
