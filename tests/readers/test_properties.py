"""Random logs: what is written is read back bit by bit, and nothing but LogError escapes."""

import csv
import io
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples

from trimtab.core.block import Block
from trimtab.core.errors import LogError
from trimtab.readers import log_file, read_log
from trimtab.readers.reading import FORMATS

Cell = float | None
Rows = list[tuple[int, Cell, Cell, Cell]]

NAMES = ("loss", "grad_norm", "custom metric")

cells = st.none() | st.floats(allow_nan=True, allow_infinity=True)
rows = st.lists(
    st.tuples(st.integers(-(2**53), 2**53), cells, cells, cells), min_size=1, max_size=40
)

FRAGMENTS = [
    *(
        "step,loss\n",
        "1,2.5\n",
        "nan,2.5\n",
        '"',
        ",",
        "\n",
        "\r",
        ";",
        "\t",
        "nan",
        "1.#INF",
        "1_0",
        "-",
        "\0",
    ),
    *(
        '{"step": 1, "loss": 2.5}\n',
        "{",
        "}",
        "[",
        ":",
        "NaN",
        "null",
        "true",
        "9" * 5000,
        "\ufeff",
    ),
    *("\ud7ff", "\x1b", "1e999", '"loss": ', '{"a":' * 30, "step;loss\n", "eval loss", "\\u0000"),
    *(" iteration 1/ 2 | ", "consumed samples: 1 |", "lm loss: 2.5 |", "step: 1  loss: 2.5  "),
    *(
        "step 1/2 (3.0%) | loss: 2.5 | ",
        "iter 1: loss 2.5, time 1ms",
        "s:1 trl:2.5",
        "\n    a=1.5B",
    ),
    *("[step=1/2,epoch=1]", 'train_inner {"loss": "2.5", "num_updates": "1"}', "[rank1]:", "1: "),
    *(
        "step:1/2 train_loss:2.5 ",
        "steps: 1 loss: 2.5 ",
        "epoch: 1|step: 1|act_loss: 1.5",
        "OVERFLOW! ",
    ),
    ':::MLLOG {"key": "tracked_stats", "value": {"loss": 2.5}, "metadata": {"step": 64}}',
    *(
        ':::MLLOG {"key": "global_batch_size", "value": 64',
        "Training epoch 0, iteration 1/2 | loss: 1",
    ),
]


def read_bytes(content: bytes, format: str | None, block_bytes: int = 1 << 20) -> Block:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(content)
        with mock.patch.object(log_file, "BLOCK_BYTES", block_bytes):
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


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=300), st.sampled_from([None, *FORMATS]))
@example(b'"', "csv")
@example(b"\r", "csv")
def test_random_bytes_raise_nothing_else(content: bytes, format: str | None) -> None:
    with suppress(LogError):
        read_bytes(content, format, 13)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=30),
    st.sampled_from([None, *FORMATS]),
    st.sampled_from([7, 1 << 20]),
)
def test_random_fragments_raise_nothing_else(
    parts: list[str], format: str | None, block_bytes: int
) -> None:
    with suppress(LogError):
        read_bytes("".join(parts).encode("utf-8", "surrogatepass"), format, block_bytes)


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), rows, st.sampled_from([to_csv, to_jsonl]))
def test_mutated_logs_raise_nothing_else(
    data: st.DataObject, table: Rows, write: Callable[[Rows], bytes]
) -> None:
    content = bytearray(write(table))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    with suppress(LogError):
        block = read_bytes(bytes(content), None)
        assert len(block) <= len(table) + 7
