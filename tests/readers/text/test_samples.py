"""What each trainer prints is read back, in whatever state its log is found."""

import random
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.kit.cases import one_of_each
from tests.kit.text_logs.story import Ink
from tests.kit.text_logs.writers import SAMPLES, Sample
from tests.readers.shapes import Write

from trimtab.core.block import Block
from trimtab.core.errors import LogError, UnreadableLog
from trimtab.readers import log_file, read_log
from trimtab.readers.runs import rows_of_others

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def with_each(others: Iterable[object]) -> list[Any]:
    """Return every sample with each of the others; in CI every one of both."""
    return one_of_each(product(SAMPLES, others), lambda case: (case[0].name, case[1]))


def name_of(value: Any) -> str:
    return value.name if isinstance(value, Sample) else str(value)[:12]


def assert_same(block: Block, ink: Ink) -> None:
    """Every signal that was printed is there, with its very numbers and its gaps."""
    assert block.step.tolist() == ink.column("step")
    for signal in {name for row in ink.rows for name in row} - {"step"}:
        wanted = ink.column(signal)
        column = block.column(signal)
        assert column.present.tolist() == [value is not None for value in wanted], signal
        numbers = [np.nan if value is None else value for value in wanted]
        np.testing.assert_array_equal(column.values, numbers, err_msg=signal)


@every_sample
def test_what_is_printed_is_read(
    sample: Sample, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, ink = sample.print()
    path = write("".join(parts), "log.txt")
    reading = read_log(path)
    assert reading.format == sample.format
    assert_same(reading.block, ink)
    assert dict(reading.block.qualities) == sample.qualities
    assert reading.block.attempt[-1] == 1
    assert "The step goes back once, as after a restart." in reading.notes
    with pytest.raises(UnreadableLog):
        read_log(path, format="hf" if sample.format == "mlperf" else "mlperf")
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 100)  # however the file is cut
    assert_same(read_log(path, format=sample.format).block, ink)


@every_sample
def test_a_log_that_was_cut_off(sample: Sample, write: Write) -> None:
    parts, ink = sample.print()
    whole = "".join(parts)
    last = [line for line in parts[0].splitlines() if line][-1]
    for part in (whole[:-1], whole + last[: len(last) * 4 // 5]):
        reading = read_log(write(part))
        assert len(reading.block) >= len(ink.rows) - 1
        assert_same(reading.block[: len(ink.rows) - 1], Ink(ink.rows[:-1]))


PREFIXES = ["[rank0]:", "[rank0]: ", "[default3]:", " 3: ", "2026-11-15T10:00:00.0Z ", "\x1b[1;32m"]


@pytest.mark.parametrize(("sample", "prefix"), with_each(PREFIXES), ids=name_of)
def test_what_launchers_put_before_a_line_and_much_else_before_the_records(
    sample: Sample, prefix: str, write: Write
) -> None:
    parts, ink = sample.print()
    noise = "a warning, with commas, of no use\n" * 1_000 + "epoch 1,2,3\n"
    lines = [prefix + line for part in parts for line in part.splitlines(keepends=True)]
    reading = read_log(write(noise + "".join(lines)))
    assert reading.format == sample.format
    assert_same(reading.block, ink)


@every_sample
def test_of_several_ranks_one_is_read(sample: Sample, write: Write) -> None:
    own, ink = sample.print()
    logs = {0: own, 1: sample.print(seed=1)[0], 2: sample.print(seed=2)[0]}
    queue = [(rank, line) for rank, parts in logs.items() for line in "".join(parts).splitlines()]
    order = [rank for rank, _ in queue]
    random.Random(0).shuffle(order)
    lines = {rank: iter([line for owner, line in queue if owner == rank]) for rank in logs}
    text = "".join(f"[rank{rank}]:{next(lines[rank])}\n" for rank in order)
    reading = read_log(write(text))
    assert_same(reading.block, ink)
    assert any("of further ranks are left out" in note for note in reading.notes)


def test_a_different_rank_may_take_over() -> None:
    assert rows_of_others(np.array([7, 7, 7, 15, 15, 15, 15])).tolist() == []
    assert rows_of_others(np.array([7, 0, 7, 7, 15, 15, 0, 15, 15])).tolist() == [1, 6]
    assert rows_of_others(np.array([-1, -1, -1])).tolist() == []
    assert rows_of_others(np.array([], dtype=int)).tolist() == []


@every_sample
def test_a_restart_writes_on_where_a_crash_stopped(sample: Sample, write: Write) -> None:
    parts, ink = sample.print(evaluated=False)
    longest = max(parts[25].splitlines(), key=len)
    parts[25] = parts[25][: parts[25].index(longest) + len(longest) * 9 // 10]
    reading = read_log(write("".join(parts)))
    assert_same(reading.block, Ink(ink.rows[:25] + ink.rows[26:]))


HOSTILE = ["1" * 9000, "1.1" * 3000, "1,1" * 3000, "a" * 9000, "a " * 4500, " " * 9000, ":" * 9000]


@pytest.mark.parametrize(("sample", "hostile"), with_each(HOSTILE), ids=name_of)
def test_no_line_takes_long(sample: Sample, hostile: str, write: Write) -> None:
    parts, _ = sample.print(evaluated=False)
    line = max(parts[0].splitlines(), key=len)
    text = "".join(parts) + line + hostile + "\n" + line.replace("1", hostile[:99]) * 9 + "x\n"
    begin = time.process_time()
    # Damaged numbers may leave it open which of several losses is meant: the name decides.
    name = "Actor Loss" if sample.name == "DeepSpeed-Chat" else None
    assert len(read_log(write(text), loss=name).block) >= len(parts)
    assert time.process_time() - begin < 3


def test_very_long_lines_are_left_out(write: Write) -> None:
    [sample] = [sample for sample in SAMPLES if sample.name == "torchtitan"]
    parts, ink = sample.print()
    reading = read_log(write("".join(parts) + parts[-1].rstrip("\n") + "x" * 70_000 + "\n"))
    assert_same(reading.block, ink)
    assert "1 line too long for a record is left out." in reading.notes


@pytest.mark.parametrize(("sample", "seed"), with_each(range(8)), ids=name_of)
def test_no_number_is_too_large(sample: Sample, seed: int, write: Write) -> None:
    rng = random.Random(seed)
    text = "".join(sample.print(evaluated=seed % 2 == 0)[0])
    extremes = ["1e308", "-1e308", "1e-320", "0.0", "nan", "-inf", "2.5", "2.5", "2.5"]
    text = re.sub(r"\d+\.\d+(?:[eE][-+]\d+)?", lambda _: rng.choice(extremes), text)
    huge = ["9" * 400, "9" * 17, "0", "1", "2", "3"]
    text = re.sub(r"(?<![\d.:-])\d+(?![\d.:-])", lambda _: rng.choice(huge), text)
    with suppress(LogError):
        assert len(read_log(write(text)).block) > 0
