"""Small corpora in every format, with documents that are known."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEPARATOR = 0
Document = NDArray[np.int64]


def make_documents(seed: int = 0, *, count: int = 40, vocab: int = 300) -> list[Document]:
    """Documents of 1 to 400 tokens without the separator; some twice, one phrase repeated."""
    random = np.random.default_rng(seed)
    found = [random.integers(1, vocab, size=int(random.integers(1, 400))) for _ in range(count)]
    phrase = random.integers(1, vocab, size=5)
    found.append(np.concatenate([random.integers(1, vocab, size=50), np.tile(phrase, 40)]))
    found += [found[3], found[3], found[8]]
    return found


def flat(documents: Sequence[Document], separator: int | None = SEPARATOR) -> Document:
    end = np.array([] if separator is None else [separator], dtype=np.int64)
    return np.concatenate([part for document in documents for part in (document, end)])


def write_bin(path: Path, documents: Sequence[Document], dtype: str = "uint16") -> Path:
    flat(documents).astype(dtype).tofile(path)
    return path


def write_llmc(path: Path, documents: Sequence[Document]) -> Path:
    tokens = flat(documents).astype("uint16")
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


def write_megatron(path: Path, documents: Sequence[Document], dtype: str = "int32") -> Path:
    """As Megatron-LM's IndexedDatasetBuilder does, with a sequence for each document."""
    code = {"uint16": 8, "int32": 4}[dtype]
    lengths = [len(document) for document in documents]
    pointers = np.cumsum([0, *lengths[:-1]]) * np.dtype(dtype).itemsize
    flat(documents, None).astype(dtype).tofile(path)
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
        + np.array(lengths, dtype=np.int32).tobytes()
        + pointers.astype(np.int64).tobytes()
        + np.arange(len(lengths) + 1, dtype=np.int64).tobytes()
    )
    return path


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def as_rows(documents: Sequence[Document]) -> list[dict[str, Any]]:
    return [{"input_ids": document.tolist()} for document in documents]
