"""TokenCorpus: the token files of a corpus, one per source and split.

tokenizer.json   train-code.npy   train-prose.npy   ...   held-out-code.npy   ...   manifest.json
"""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from trimtab.lab.corpus.text import Source

TokenArray = npt.NDArray[np.uint16]
"""Tokens as they are stored."""

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"


class Split(StrEnum):
    """The use of a part of the corpus."""

    TRAIN = "train"
    HELD_OUT = "held-out"


@dataclass(frozen=True, kw_only=True)
class TokenCorpus:
    """Labelled token files in a folder, with the manifest that describes them."""

    folder: Path
    manifest: dict[str, Any]
    """Versions and vocabulary size; source, split, counts and checksum of each file."""

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The corpus in a folder; None if it does not exist or is damaged."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            for name, entry in manifest["files"].items():
                if checksum(folder / name) != entry["sha256"]:
                    return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return cls(folder=folder, manifest=manifest)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including those that never occur."""
        return int(self.manifest["vocab_size"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Turns text into tokens and back."""
        return Tokenizer.from_file(str(self.folder / TOKENIZER))

    def tokens(self, split: Split) -> dict[Source, TokenArray]:
        """The tokens of a split by source, in the order of the labels."""
        arrays: dict[Source, TokenArray] = {}
        for source in Source:
            name = shard_name(source, split)
            if name in self.manifest["files"]:
                arrays[source] = np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
        return arrays

    def counts(self) -> npt.NDArray[np.int64]:
        """How often each token occurs in the training split."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for array in self.tokens(Split.TRAIN).values():
            counts += np.bincount(array, minlength=self.vocab_size)
        return counts


def shard_name(source: Source, split: Split) -> str:
    """The name of the token file of a source and split."""
    return f"{split}-{source}.npy"


def checksum(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
