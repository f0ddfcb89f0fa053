"""The export is made by W&B's server: its grammar is that of files which people published."""

from collections.abc import Sequence

import pytest
from tests.readers.shapes import Write, assert_reads, values
from tests.readers.written import FIRST, NAMES, ROWS, Row, assert_reads_back

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import LOSS, Quality
from trimtab.readers import read_log


def export(runs: dict[str, Sequence[Row]], spread: float = 0.0) -> str:
    """The export of a chart of all metrics: every cell in quotes, empty where a run has none."""
    names = [f"{run} - {name}" if run else name for run in runs for name in NAMES]
    header = ["Step", *(name + end for name in names for end in ("", "__MIN", "__MAX"))]
    lines = [header]
    for place in range(max(map(len, runs.values()))):
        line = []
        for rows in runs.values():
            row = rows[place] if place < len(rows) else None
            for name in NAMES:
                value = row.values().get(name) if row else None
                word = "" if value is None else repr(value).replace("nan", "NaN")
                line += [word, word, word if not spread or not word else repr(float(word) + spread)]
        step = next(rows[place].step for rows in runs.values() if place < len(rows))
        lines.append([str(step), *line])
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)


def test_one_run(write: Write) -> None:
    reading = read_log(write(export({"volcanic-cloud-12": ROWS})))
    assert reading.format == "csv"
    assert_reads_back(reading.block, ROWS)
    assert reading.block.columns.keys() == set(NAMES)
    assert reading.block.quality(LOSS) is Quality.RAW
    assert reading.notes == ("The step goes back once, as after a restart.",)


def test_a_run_without_its_name(write: Write) -> None:
    assert_reads_back(read_log(write(export({"": ROWS}))).block, ROWS)


def test_several_runs(write: Write) -> None:
    path = write(export({"a - b": FIRST, "c": ROWS[: len(FIRST)]}))
    reading = read_log(path)
    assert_reads_back(reading.block, FIRST)
    assert "Of 2 runs in the file, 'a - b' is read" in reading.notes[0]
    for other in (read_log(path, run="c"), read_log(f"{path}#c")):
        assert_reads_back(other.block, FIRST)
        assert "'c' is read; --run reads a different one: 'a - b'." in other.notes[0]
    with pytest.raises(UnreadableLog, match="has no run 'd'; its runs: 'a - b', 'c'"):
        read_log(f"{path}#d")


def test_points_that_represent_many_steps_are_means(write: Write) -> None:
    reading = read_log(write(export({"run": FIRST}, spread=0.5)))
    assert reading.block.quality(LOSS) is Quality.WINDOW_MEAN
    assert any("means over several steps" in note for note in reading.notes)
    assert values(reading.block, "loss__MAX")[0] == FIRST[0].loss + 0.5


def test_a_metric_of_a_different_name_is_no_export(write: Write) -> None:
    assert_reads(read_log(write("step,loss,x__MIN\n1,2.5,3\n")), "loss=2.5; x__MIN=3")


def test_what_hf_hid_is_found_here_too(write: Write) -> None:
    header = "Step,r - train/loss,r - train/loss__MIN,r - train/loss__MAX,r - train/grad_norm,"
    header += "r - train/learning_rate,r - train/epoch\n"
    rows = "1,2.5,2.5,2.5,1,0.1,0.5\n2,0,0,0,NaN,0.1,0.5\n"
    reading = read_log(write(header + rows))
    assert_reads(reading, "loss=2.5 nan", ...)
    assert reading.block.quality(LOSS) is Quality.INFERRED
