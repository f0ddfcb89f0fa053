"""Byte-level BPE: encodes any text and decodes it unchanged."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

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


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[npt.NDArray[np.uint16]]:
    """Encode texts on all cores; the separator is appended to each."""
    encodings = tokenizer.encode_batch_fast(list(texts))
    return [np.array([*encoding.ids, SEPARATOR_ID], dtype=np.uint16) for encoding in encodings]
