import sys
from pathlib import Path
from typing import Any

import pytest
from tests.readers.make_fixtures import FIXTURES, make_anew
from tests.readers.shapes import Write, assert_reads
from tests.readers.written import FIRST, ROWS, assert_reads_back

from trimtab.core.errors import LogError, MissingExtra, UnreadableLog
from trimtab.readers import read_log
from trimtab.readers.trackers import parquet as ours

RUN = FIXTURES / "parquet" / "run.parquet"
RUNS = FIXTURES / "parquet" / "runs.parquet"


@pytest.fixture
def parquet() -> Any:
    """pyarrow's writer."""
    return pytest.importorskip("pyarrow.parquet")


def make(path: Path, **columns: list[Any]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
    return path


def test_a_plain_table(parquet: Any) -> None:
    reading = read_log(RUN)
    assert reading.format == "parquet"
    assert_reads_back(reading.block, ROWS)


def test_a_table_of_several_runs(parquet: Any) -> None:
    reading = read_log(RUNS)
    assert_reads_back(reading.block, ROWS)
    assert "Of 2 runs in the file, 'run' is read" in reading.notes[0]
    for run in ("before", "1"):
        assert_reads_back(read_log(f"{RUNS}#{run}").block, FIRST[:1])


def test_the_real_package_still_writes_so(parquet: Any, tmp_path: Path) -> None:
    make_anew("parquet", tmp_path)
    for path in (tmp_path / "run.parquet", tmp_path):
        assert_reads_back(read_log(path).block, ROWS)


def test_types_of_numbers(parquet: Any, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    path = make(
        tmp_path / "x.parquet",
        step=arrow.array([1, 2, None], "uint8"),
        loss=arrow.array([2.5, None, 1.0], "float32"),
        lr=arrow.array([None, 3, 4], "int64"),
        flag=[True, False, True],
        words=["a", "b", None],
    )
    reading = read_log(path)
    assert_reads(reading, "step=1 2; loss=2.5 -; lr=- 3", ...)
    assert reading.block.columns.keys() == {"loss", "lr"}


def test_a_loss_in_words_and_a_table_without_rows(parquet: Any, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="'loss' is a loss column, but no number"):
        read_log(make(tmp_path / "x.parquet", step=[1], loss=["2.5"]))
    with pytest.raises(UnreadableLog, match="holds no values"):
        read_log(make(tmp_path / "x.parquet", step=[], loss=[]))


def test_claims_without_bytes_are_refused(
    parquet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "x.parquet", step=[0] * 1_200_000, loss=[1.0] * 1_200_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(UnreadableLog, match="claims 1200000 rows"):
        read_log(path)
    monkeypatch.setattr(ours, "_FREE_ROWS", 1 << 30)
    monkeypatch.setattr(ours, "_FREE_UNPACKED", 1 << 20)
    parquet.write_table(parquet.read_table(path), path, use_dictionary=False, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(UnreadableLog, match="which no log does"):
        read_log(path)


def test_without_pyarrow_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[parquet\]"'):
        read_log(RUN)


@pytest.mark.parametrize("end", [4, 5, 100, -1])
def test_a_cut_or_damaged_file_says_so(write: Write, end: int) -> None:
    data = bytearray(RUN.read_bytes())
    with pytest.raises(UnreadableLog, match="is cut off"):
        read_log(write(data[:end]))
    data[-8:-4] = b"\xff\xff\xff\x7f"  # the length of the index
    with pytest.raises(LogError):
        read_log(write(data))
