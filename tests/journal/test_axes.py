"""Axes that are one number take no memory, and the others are as they were written."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.core.block import Block
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.journal.header import Axis
from trimtab.journal.writer import JournalLimits


def write(folder: Path, steps: list[int], attempts: list[int], positions: list[int]) -> Block:
    run = RunDirectory(folder)
    with JournalWriter(run, JournalLimits(segment_records=10)) as writer:
        for step, attempt, position in zip(steps, attempts, positions, strict=True):
            writer.append(step, {"loss": 1.0}, attempt, position)
    return read_journal(run).block


def assert_read(block: Block, steps: list[int], attempts: list[int], positions: list[int]) -> None:
    assert block.tick.tolist() == list(range(len(steps)))
    assert block.step.tolist() == steps
    assert block.attempt.tolist() == attempts
    assert block.data_position.tolist() == positions


def test_an_axis_that_is_one_number_takes_no_memory(tmp_path: Path) -> None:
    axes = (list(range(35)), [0] * 35, [-1] * 35)
    block = write(tmp_path, *axes)
    assert_read(block, *axes)
    assert block.attempt.strides == block.data_position.strides == (0,)


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 20, 21, 35])
def test_files_of_any_length_join(length: int, tmp_path: Path) -> None:
    steps = [100 + 2 * k for k in range(length)]
    axes = (steps, [3] * length, list(range(length)))
    assert_read(write(tmp_path, *axes), *axes)


@pytest.mark.parametrize("at", [5, 10, 15, 20])
def test_a_run_that_went_back_is_as_it_was(at: int, tmp_path: Path) -> None:
    steps = [*range(at), *range(3, 28)]
    attempts = [0] * at + [1] * 25
    positions = [*range(at), *range(at + 7, at + 32)]
    assert_read(write(tmp_path, steps, attempts, positions), steps, attempts, positions)


def test_numbers_further_apart_than_64_bits_hold_are_no_range() -> None:
    assert Axis.of(np.array([-(2**63), 2**63 - 1])) is None
    assert Axis.of(np.array([7, 8])) == Axis(start=7, stride=1)
