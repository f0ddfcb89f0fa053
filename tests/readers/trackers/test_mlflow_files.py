from pathlib import Path
from typing import Any

import pytest
from tests.readers.make_fixtures import FIXTURES, make_anew
from tests.readers.shapes import assert_reads
from tests.readers.written import FIRST, ROWS, assert_reads_back

from trimtab.core.errors import UnreadableLog
from trimtab.readers import read_log

STORE = FIXTURES / "mlflow" / "mlruns"


def make(folder: Path, **metrics: str) -> Path:
    run = folder / "0" / "run"
    for name, text in metrics.items():
        path = run / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (run / "meta.yaml").write_text("start_time: 5\n")
    return run


def test_the_newest_run_of_a_store() -> None:
    reading = read_log(STORE)
    assert reading.format == "mlflow"
    assert_reads_back(reading.block, ROWS)
    assert reading.names["loss"] == "train/loss"
    assert "It is the newest of 2 such logs" in reading.notes[1]
    newest = reading.path
    assert newest is not None
    assert_reads_back(read_log(newest).block, ROWS)
    (other,) = [run for run in (STORE / "0").iterdir() if run != newest]
    assert_reads_back(read_log(other).block, FIRST[:3])


def test_the_real_package_still_writes_so(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    make_anew("mlflow", tmp_path)
    assert_reads_back(read_log(tmp_path / "mlruns").block, ROWS)


CUT = "1 last line of a metric, cut off in the middle, is left out."
RESTART = "The step goes back once, as after a restart."
NO_LINE = "4 lines are not 'timestamp value step' and left out."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "1 2.5 1\n2 nan 2\n3 inf 3\n4 -inf 4\n5 3 5 data digest\n",
            ["step=1 2 3 4 5; loss=2.5 nan inf -inf 3"],
        ),
        ("1 2.5\n2 2.4\n", ["step=0 1", ...]),  # without steps the rows are numbered
        ("1 2.5 1\n\n2 2.5 2\n3 2.", ["step=1 2", CUT]),
        (f"1 2.5 1\nx\n1 2\n1 x 2\n1.5 2 3\n{2**70} 1 1\n", ["loss=2.5 2", NO_LINE, RESTART]),
    ],
    ids=["every spelling", "no steps", "a cut line", "lines that are none"],
)
def test_lines(tmp_path: Path, text: str, wanted: list[Any]) -> None:
    columns, *notes = wanted
    assert_reads(read_log(make(tmp_path, loss=text)), columns, *notes)


def test_a_run_without_metrics(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="holds no values"):
        read_log(make(tmp_path, loss="\n"))
    with pytest.raises(UnreadableLog, match="without a log"):
        read_log(tmp_path / "0" / "run" / "metrics")
