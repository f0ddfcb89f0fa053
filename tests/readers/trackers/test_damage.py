"""Real files with random damage: nothing but our own errors, in little time and little memory."""

import gzip
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.readers.make_fixtures import FIXTURES
from tests.readers.trackers.protobytes import checksum

from trimtab.core.errors import LogError, MissingExtra
from trimtab.readers import read_log

REAL = {
    "old.tfevents": (FIXTURES / "tensorboard" / "events.out.tfevents.1700000000.host").read_bytes(),
    "new.tfevents": (FIXTURES / "tensorboard" / "events.out.tfevents.1700000001.host").read_bytes(),
    "run.wandb": (FIXTURES / "wandb" / "run-fixture.wandb").read_bytes(),
    "trackio.db": gzip.decompress((FIXTURES / "trackio" / "fixture.db.gz").read_bytes()),
    "mlflow.db": gzip.decompress((FIXTURES / "mlflow" / "mlflow.db.gz").read_bytes()),
    "run.parquet": (FIXTURES / "parquet" / "run.parquet").read_bytes(),
    "trainer_state.json": (FIXTURES / "hf" / "every_1.json").read_bytes(),
}
BINARY = ["tensorboard", "wandb", "sqlite", "parquet"]

CPU_SECONDS = 5.0
MEMORY_BYTES = 64 << 20
"""Far over what these small files need, far under what their headers can claim."""

# Small and large numbers, all ones, a NaN, and pieces of the formats themselves.
WORDS = [bytes(8), b"\xff" * 8, b"\x7f" * 4, (1 << 62).to_bytes(8, "little"), b"\x00\x00\xc0\x7f"]
WORDS += [b"SQLite format 3\0", b":W&B\xe1\xbe\x00", b"PAR1", b"\x80" * 12, b"\x0a\xff\xff\xff\x0f"]


@contextmanager
def within_bounds() -> Iterator[None]:
    tracemalloc.start()
    started = time.process_time()
    try:
        yield
        assert time.process_time() - started < CPU_SECONDS
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def survive(content: bytes, name: str, format: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        with within_bounds():
            try:
                reading = read_log(path, format=format)
            except (LogError, MissingExtra):
                return
            assert len(reading.block) <= len(content)


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    content = bytearray(REAL[name])
    for _ in range(draw(st.integers(1, 5))):
        place = draw(st.integers(0, len(content)))
        if draw(st.booleans()):  # near the start, where the headers are
            place %= 128
        width = draw(st.sampled_from([0, 1, 4, 8, 100, 5000]))
        new = draw(st.sampled_from(WORDS) | st.binary(max_size=9))
        content[place : place + width] = new * (1 if len(new) != 8 else draw(st.integers(1, 20)))
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content))) :]
    return bytes(content)


@pytest.mark.parametrize("name", REAL)
def test_damaged_files_raise_nothing_else(name: str) -> None:
    @settings(max_examples=examples(60), deadline=None)
    @given(damaged(name))
    def check(content: bytes) -> None:
        survive(content, name)

    check()


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from([b"", b":W&B\xe1\xbe\x00", b"SQLite format 3\0", b"PAR1"]),
    st.lists(st.sampled_from(WORDS) | st.binary(max_size=60), max_size=12).map(b"".join),
    st.sampled_from([None, *BINARY]),
)
def test_random_bytes_raise_nothing_else(mark: bytes, content: bytes, format: str | None) -> None:
    survive(mark + content, "log", format)


def test_a_header_that_claims_everything_costs_nothing() -> None:
    length = (1 << 62).to_bytes(8, "little")
    survive(REAL["old.tfevents"] + length + checksum(length), "log")
    survive(b":W&B\xe1\xbe\x00" + b"\xff" * 7 + bytes(100), "log")
    page_count = b"\xff\xff\xff\xff"
    database = REAL["trackio.db"]
    survive(database[:28] + page_count + database[32:], "log.db")
