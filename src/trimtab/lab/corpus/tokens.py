"""prepare_corpus: token files from the standard library's text, built once and then cached."""

import hashlib
import json
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from trimtab.core.errors import ConfigError, LabError
from trimtab.lab.corpus.data import (
    MANIFEST,
    TOKENIZER,
    CorpusSplit,
    TokenArray,
    TokenCorpus,
    file_checksum,
    shard_name,
)
from trimtab.lab.corpus.text import Document, Source, SourceFile, documents_of, library_files

SEPARATOR = "<|end|>"
"""Follows each document."""

SEPARATOR_ID = 0
"""Special tokens come first in the vocabulary."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a tokenizer; equal texts give equal vocabularies."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_documents(tokenizer: Tokenizer, texts: Sequence[str]) -> list[npt.NDArray[np.uint16]]:
    """Encode texts on all cores; the separator is appended to each."""
    encodings = tokenizer.encode_batch_fast(list(texts))
    return [np.array([*encoding.ids, SEPARATOR_ID], dtype=np.uint16) for encoding in encodings]


Progress = Callable[[int, int], None]
"""Takes the work done so far and the total."""

_FORMAT = 1
"""Incremented whenever the same text would give different files; older caches are then unused."""

_CHUNK = 64
"""Documents encoded at once: enough for all cores, few enough for a smooth progress bar."""

_VOCABULARIES = range(256 + 1, 2**16 + 1)
"""At least all bytes and the separator, at most what fits into uint16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """Which corpus to build."""

    vocab_size: int
    """Number of tokens; `SIZES[name].vocab_size` for a model of the lab."""
    max_bytes: int = 2**25
    """Maximum source text to read. The whole library without its tests has 11 MB in Python 3.11; a
    smaller number takes a random sample of its files."""

    def __post_init__(self) -> None:
        if self.vocab_size not in _VOCABULARIES:
            first, last = _VOCABULARIES[0], _VOCABULARIES[-1]
            raise ConfigError(f"vocab_size must be {first} to {last}, got {self.vocab_size}")


def default_cache() -> Path:
    """Return where caches are kept: `$XDG_CACHE_HOME/trimtab`, or `~/.cache/trimtab`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: relative paths must be ignored.
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "trimtab"


def prepare_corpus(
    config: CorpusConfig, *, cache_dir: Path | None = None, progress: Progress | None = None
) -> TokenCorpus:
    """Load the corpus from the cache, or build it (about 20 seconds) if it is missing or damaged.

    Several processes may call this at the same time: a folder appears only once it is complete.
    """
    files = library_files(config.max_bytes)
    facts = _facts(config, files)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    cache = (cache_dir or default_cache()) / "tokens"
    folder = cache / f"python{platform.python_version()}-vocab{config.vocab_size}-{key}"
    corpus = TokenCorpus.load(folder)
    if corpus is not None:
        return corpus
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".draft-") as draft:
        _build(Path(draft, "corpus"), config, files, facts, progress or _no_progress)
        _publish(Path(draft), folder)
    corpus = TokenCorpus.load(folder)
    if corpus is None:
        raise LabError(f"{folder} was damaged while being written; is the disk full or failing?")
    return corpus


def _facts(config: CorpusConfig, files: Sequence[SourceFile]) -> dict[str, Any]:
    """Everything that determines the content of the token files."""
    listing = "\n".join(f"{file.name} {file.size}" for file in files)
    return {
        "format": _FORMAT,
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        "vocab_size": config.vocab_size,
        "max_bytes": config.max_bytes,
        "source_files": len(files),
        "source_listing_sha256": hashlib.sha256(listing.encode()).hexdigest(),
    }


def _build(
    folder: Path,
    config: CorpusConfig,
    files: Sequence[SourceFile],
    facts: dict[str, Any],
    progress: Progress,
) -> None:
    """Read, train, encode: each counts as a third of the work."""
    folder.mkdir()
    third = len(files)
    documents: list[Document] = []
    for place, file in enumerate(files):
        documents += documents_of(file, place)
        progress(place, 3 * third)
    progress(third, 3 * third)
    tokenizer = train_tokenizer((d.text for d in documents if not d.held_out), config.vocab_size)
    tokenizer.save(str(folder / TOKENIZER))
    encoded: list[TokenArray] = []
    for start in range(0, len(documents), _CHUNK):
        progress(2 * third + start * third // len(documents), 3 * third)
        encoded += encode_documents(tokenizer, [d.text for d in documents[start : start + _CHUNK]])
    entries = {TOKENIZER: {"sha256": file_checksum(folder / TOKENIZER)}}
    entries |= _write_shards(folder, documents, encoded)
    manifest = facts | {"files": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    progress(3 * third, 3 * third)


def _write_shards(
    folder: Path, documents: Sequence[Document], encoded: Sequence[TokenArray]
) -> dict[str, dict[str, Any]]:
    """Write one file per source and split; return the manifest entry of each."""
    parts: dict[tuple[Source, CorpusSplit], list[tuple[Document, TokenArray]]] = defaultdict(list)
    for document, ids in zip(documents, encoded, strict=True):
        split = CorpusSplit.HELD_OUT if document.held_out else CorpusSplit.TRAIN
        parts[document.source, split].append((document, ids))
    entries = {}
    for (source, split), pairs in sorted(parts.items()):
        name = shard_name(source, split)
        tokens = np.concatenate([ids for _, ids in pairs])
        np.save(folder / name, tokens, allow_pickle=False)
        entries[name] = {
            "source": source.value,
            "split": split.value,
            "documents": len(pairs),
            "bytes": sum(len(document.text.encode()) for document, _ in pairs),
            "tokens": len(tokens),
            "sha256": file_checksum(folder / name),
        }
    return entries


def _publish(draft: Path, folder: Path) -> None:
    """Move a finished corpus to its place; a damaged one there is deleted with the draft."""
    try:
        if folder.exists() and TokenCorpus.load(folder) is None:
            folder.replace(draft / "damaged")
        (draft / "corpus").replace(folder)
    except OSError:
        # Another process built it in the meantime; its files are the same as ours.
        if TokenCorpus.load(folder) is None:
            raise


def _no_progress(done: int, total: int) -> None:
    """Used when no progress is wanted."""
