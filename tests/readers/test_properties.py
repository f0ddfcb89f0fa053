"""Random logs: what is written is read back bit by bit, however the file is cut and damaged.

That nothing but our own errors comes out of damaged ones is tested in `tests/fuzz`.
"""

import csv
import gzip
import io
import json
import tempfile
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.fuzz.damage import TOKENS
from tests.kit.text_logs.writers import SAMPLES, Sample
from tests.readers.make_fixtures import FIXTURES
from tests.readers.trackers.protobytes import checksum

from trimtab.core.block import Block
from trimtab.core.errors import LogError, MissingExtra
from trimtab.readers import log_file, read_log
from trimtab.readers.general import shapes

Cell = float | None
Rows = list[tuple[int, Cell, Cell, Cell]]

NAMES = ("loss", "grad_norm", "custom metric")

cells = st.none() | st.floats(allow_nan=True, allow_infinity=True)
rows = st.lists(
    st.tuples(st.integers(-(2**53), 2**53), cells, cells, cells), min_size=1, max_size=40
)


def read_bytes(
    content: bytes, format: str | None, block_bytes: int = 1 << 20, layouts: int = 4
) -> Block:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(content)
        with (
            mock.patch.object(log_file, "BLOCK_BYTES", block_bytes),
            mock.patch.object(shapes, "MAX_FREQUENT", layouts),
        ):
            return read_log(path, format=format).block


def to_csv(table: Rows) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("step", *NAMES))
    for step, *signals in table:
        writer.writerow((step, *("" if value is None else repr(value) for value in signals)))
    return text.getvalue().encode()


def to_jsonl(table: Rows) -> bytes:
    records = [dict(zip(("step", *NAMES), row, strict=True)) for row in table]
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def assert_same(block: Block, table: Rows) -> None:
    kept = [row for row in table if any(value is not None for value in row[1:])]
    assert block.step.tolist() == [row[0] for row in kept]
    for place, name in enumerate(NAMES, start=1):
        column = block.column(name)
        wanted = [row[place] for row in kept]
        assert column.present.tolist() == [value is not None for value in wanted]
        numbers = np.array([np.nan if value is None else value for value in wanted])
        same = column.values.view(np.int64) == numbers.view(np.int64)
        assert (same | (np.isnan(column.values) & np.isnan(numbers))).all()


@settings(deadline=None)
@given(rows, st.sampled_from([11, 100, 1 << 20]))
def test_what_is_written_is_read_back(table: Rows, block_bytes: int) -> None:
    table = sorted(table, key=lambda row: row[0])  # what is in no order would be sorted
    for format, content in (("csv", to_csv(table)), ("jsonl", to_jsonl(table))):
        if any(row[1] is not None for row in table):
            assert_same(read_bytes(content, format, block_bytes), table)
        else:
            with suppress(LogError):
                read_bytes(content, format, block_bytes)


# Text

LINES = sorted(
    {line for sample in SAMPLES for part in sample.print()[0][:20] for line in part.splitlines()}
)
"""Lines of all trainers."""


@st.composite
def damaged_text(draw: st.DrawFn) -> str:
    """The log of a trainer, with lines of others in it, and cut or overwritten in some places."""
    sample: Sample = draw(st.sampled_from(SAMPLES))
    parts = sample.print(seed=draw(st.integers(0, 3)))[0]
    text = "".join(parts[: draw(st.integers(1, len(parts)))])
    words = st.sampled_from(TOKENS).map(lambda token: token.decode("utf-8", "replace"))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(text)))
        piece = draw(st.sampled_from(LINES) | words | st.text(max_size=5))
        text = text[:place] + piece + text[place + draw(st.integers(0, 40)) :]
    return text


# Two names for the time of a step, of which the earlier one wins.
TWO_NAMES = (
    "iter 10: loss 10.8444, time 425.89ms, mfu -100.00%\n"
    "step    10 | loss: 3.198824 | lr 6.0000e-05 | norm: 0.5524 | dt: 482.48ms | "
    "tok/sec: 1066815.32ter 20: loss 6.4049, time 478.38ms, mfu -100.00%\n"
)


@settings(max_examples=examples(200), deadline=None)
@given(damaged_text(), st.sampled_from([5, 64, 100, 1000]))
@example(TWO_NAMES, 5)
def test_how_a_text_is_cut_and_which_lines_are_frequent_changes_nothing(
    text: str, block_bytes: int
) -> None:
    content = text.encode("utf-8", "surrogatepass")
    with suppress(LogError):
        block = read_bytes(content, "text")
        assert len(block) <= text.count("\n") + text.count("\r") + 1
        for other in (
            read_bytes(content, "text", block_bytes),
            read_bytes(content, "text", layouts=0),
        ):
            assert block.step.tolist() == other.step.tolist()
            assert block.attempt.tolist() == other.attempt.tolist()
            assert block.columns.keys() == other.columns.keys()
            for name, column in block.columns.items():
                np.testing.assert_array_equal(column.values, other.column(name).values)
                np.testing.assert_array_equal(column.present, other.column(name).present)


# Files of trackers with wrong bytes in them: little time, and little memory

REAL = {
    "old.tfevents": (FIXTURES / "tensorboard" / "events.out.tfevents.1700000000.host").read_bytes(),
    "new.tfevents": (FIXTURES / "tensorboard" / "events.out.tfevents.1700000001.host").read_bytes(),
    "run.wandb": (FIXTURES / "wandb" / "run-fixture.wandb").read_bytes(),
    "trackio.db": gzip.decompress((FIXTURES / "trackio" / "fixture.db.gz").read_bytes()),
    "mlflow.db": gzip.decompress((FIXTURES / "mlflow" / "mlflow.db.gz").read_bytes()),
    "trainer_state.json": (FIXTURES / "hf" / "every_1.json").read_bytes(),
}

CPU_SECONDS = 5.0
MEMORY_BYTES = 64 << 20
"""Far over what these small files need, far under what their headers can claim."""

# Small and large numbers, all ones, a NaN, and pieces of the formats themselves.
WORDS = [bytes(8), b"\xff" * 8, b"\x7f" * 4, (1 << 62).to_bytes(8, "little"), b"\x00\x00\xc0\x7f"]
WORDS += [b"SQLite format 3\0", b":W&B\xe1\xbe\x00", b"\x80" * 12, b"\x0a\xff\xff\xff\x0f"]


def survive(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        tracemalloc.start()
        started = time.process_time()
        try:
            with suppress(LogError, MissingExtra):
                assert len(read_log(path).block) <= len(content)
            assert time.process_time() - started < CPU_SECONDS
            assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
        finally:
            tracemalloc.stop()


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.sampled_from(sorted(REAL)))
def test_damaged_files_of_trackers_cost_little(data: st.DataObject, name: str) -> None:
    content = bytearray(REAL[name])
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(content)))
        if data.draw(st.booleans()):  # near the start, where the headers are
            place %= 128
        width = data.draw(st.sampled_from([0, 1, 4, 8, 100, 5000]))
        new = data.draw(st.sampled_from(WORDS) | st.binary(max_size=9))
        content[place : place + width] = new * (1 if len(new) != 8 else 20)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    survive(bytes(content), name)


def test_a_header_that_claims_everything_costs_nothing() -> None:
    length = (1 << 62).to_bytes(8, "little")
    survive(REAL["old.tfevents"] + length + checksum(length), "log")
    survive(b":W&B\xe1\xbe\x00" + b"\xff" * 7 + bytes(100), "log")
    page_count = b"\xff\xff\xff\xff"
    database = REAL["trackio.db"]
    survive(database[:28] + page_count + database[32:], "log.db")
