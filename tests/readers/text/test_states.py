"""Logs in the states in which they are found: prefixed, coloured, interleaved, cut, restarted."""

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
from tests.readers.text.test_samples import assert_same, every_sample

from trimtab.core.errors import LogError, UnreadableLog
from trimtab.readers import read_log
from trimtab.readers.runs import rows_of_others


def name_of(value: Any) -> str:
    return value.name if isinstance(value, Sample) else str(value)[:12]


PREFIXES = ["[rank0]:", "[rank0]: ", "[default3]:", " 3: ", "2026-11-15T10:00:00.0Z ", "\x1b[1;32m"]


def with_each(others: Iterable[object]) -> list[Any]:
    """Return every sample with each of the others; in CI every one of both."""
    return one_of_each(product(SAMPLES, others), lambda case: (case[0].name, case[1]))


@pytest.mark.parametrize(("sample", "prefix"), with_each(PREFIXES), ids=name_of)
def test_what_launchers_put_before_a_line(sample: Sample, prefix: str, write: Write) -> None:
    parts, ink = sample.print()
    text = "".join(prefix + line for part in parts for line in part.splitlines(keepends=True))
    reading = read_log(write(text))
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
    assert any(note.startswith("Records of further ranks, left out: ") for note in reading.notes)


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


@every_sample
def test_records_may_come_after_much_else(sample: Sample, write: Write) -> None:
    parts, ink = sample.print()
    count = 20_000 if sample is SAMPLES[0] else 1_000
    noise = "a warning, with commas, of no use\n" * count + "epoch 1,2,3\n"
    reading = read_log(write(noise + "".join(parts)))
    assert reading.format == sample.format
    assert_same(reading.block, ink)


@every_sample
def test_the_format_can_be_forced(sample: Sample, write: Write) -> None:
    parts, ink = sample.print()
    path = write("".join(parts))
    assert_same(read_log(path, format=sample.format).block, ink)
    with pytest.raises(UnreadableLog):
        read_log(path, format="hf" if sample.format == "mlperf" else "mlperf")


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
    assert "Lines too long for a record, left out: 1." in reading.notes


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
