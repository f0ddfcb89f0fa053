from pathlib import Path

from tests.readers.make_fixtures import FIXTURES
from tests.readers.shapes import values
from tests.readers.written import FIRST, SECOND, assert_reads_back

from trimtab.readers import read_log

LOGS = FIXTURES / "lightning" / "lightning_logs"


def test_the_newest_version_is_read() -> None:
    reading = read_log(FIXTURES / "lightning")
    assert reading.format == "lightning"
    assert_reads_back(reading.block, SECOND)
    assert reading.notes == (
        "Of the folder, 'lightning_logs/version_1/metrics.csv' is read.",
        "It is the newest of 2 such logs; not read: 'lightning_logs/version_0/metrics.csv'.",
    )


def test_an_older_version_by_its_folder_or_its_file() -> None:
    for path in (LOGS / "version_0", LOGS / "version_0" / "metrics.csv"):
        block = read_log(path).block
        assert values(block, "eval_loss").count(3.0) == 1
        trained = [row for row in range(len(block)) if block.column("lr").present[row]]
        assert block.step[trained].tolist() == [row.step for row in FIRST]


def test_ten_comes_after_nine(tmp_path: Path) -> None:
    for version in (9, 10):
        (tmp_path / f"version_{version}").mkdir()
        (tmp_path / f"version_{version}" / "metrics.csv").write_text(f"step,loss\n{version},1\n")
    assert read_log(tmp_path).block.step.tolist() == [10]


def test_a_cut_line_is_left_out(tmp_path: Path) -> None:
    text = (LOGS / "version_1" / "metrics.csv").read_text()
    (tmp_path / "metrics.csv").write_text(text[:-20])
    reading = read_log(tmp_path)
    assert_reads_back(reading.block, SECOND[:-1])
    assert "1 line cut off in the middle is left out." in reading.notes
