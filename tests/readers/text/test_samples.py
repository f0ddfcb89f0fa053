"""What each trainer prints is read back, in whatever state its log is."""

import numpy as np
import pytest
from tests.kit.text_logs.story import Ink
from tests.kit.text_logs.writers import SAMPLES, Sample
from tests.readers.shapes import Write

from trimtab.core.block import Block
from trimtab.readers import log_file, read_log

CUT = "Lines cut off in the middle, left out: 1."
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


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
def test_what_is_printed_is_read(sample: Sample, write: Write) -> None:
    parts, ink = sample.print()
    reading = read_log(write("".join(parts), "log.txt"))
    assert reading.format == sample.format
    assert_same(reading.block, ink)
    assert dict(reading.block.qualities) == sample.qualities
    assert reading.block.attempt[-1] == 1
    assert "Times that the step goes back, as after a restart: 1." in reading.notes


@every_sample
@pytest.mark.parametrize("size", [7, 100, 1000])
def test_how_the_file_is_cut_does_not_matter(
    sample: Sample, size: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, ink = sample.print()
    monkeypatch.setattr(log_file, "BLOCK_BYTES", size)
    assert_same(read_log(write("".join(parts))).block, ink)


@every_sample
def test_a_log_that_was_cut_off(sample: Sample, write: Write) -> None:
    parts, ink = sample.print()
    whole = "".join(parts)
    last = [line for line in parts[0].splitlines() if line][-1]
    for part in (whole[:-1], whole + last[: len(last) * 4 // 5]):
        reading = read_log(write(part))
        assert len(reading.block) >= len(ink.rows) - 1
        assert_same(reading.block[: len(ink.rows) - 1], Ink(ink.rows[:-1]))
