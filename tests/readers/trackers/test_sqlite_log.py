import gzip
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.readers.make_fixtures import FIXTURES, make_anew
from tests.readers.shapes import assert_reads, values
from tests.readers.written import FIRST, ROWS, assert_reads_back

from trimtab.core.errors import LogError, UnreadableLog
from trimtab.core.signals import LOSS, Quality
from trimtab.readers import read_log
from trimtab.readers.trackers import databases

PACKED = {
    "mlflow": FIXTURES / "mlflow" / "mlflow.db.gz",
    "trackio": FIXTURES / "trackio" / "fixture.db.gz",
}

MLFLOW_SCHEMA = """
CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time INTEGER, lifecycle_stage TEXT);
CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INTEGER, step INTEGER, is_nan BOOLEAN,
                      run_uuid TEXT);
"""
TRACKIO_SCHEMA = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER,
                      metrics TEXT);
"""


@pytest.fixture(params=PACKED)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The database of a tracker, unpacked."""
    path = tmp_path / "tracker.db"
    path.write_bytes(gzip.decompress(PACKED[request.param].read_bytes()))
    return path


def make(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN; {script} COMMIT;")
    return path


def mlflow_rows(*rows: str) -> str:
    runs = "INSERT INTO runs VALUES ('r1', 'one', 1, 'active');"
    return MLFLOW_SCHEMA + runs + "".join(f"INSERT INTO metrics VALUES ({row});" for row in rows)


def test_the_newest_run_is_read_and_others_by_name(packed: Path) -> None:
    reading = read_log(packed)
    assert reading.format == "sqlite"
    assert_reads_back(reading.block, ROWS)
    assert "Of 2 runs in the file, 'run' is read" in reading.notes[0]
    assert_reads_back(read_log(f"{packed}#run").block, ROWS)
    before = read_log(f"{packed}#before")
    assert_reads_back(before.block, FIRST[:3])
    assert reading.block.column("clock").present.all()
    with pytest.raises(UnreadableLog, match="has no run 'behind'; its runs: 'run', 'before'"):
        read_log(f"{packed}#behind")


@pytest.mark.parametrize(("package", "name"), [("mlflow", "mlflow.db"), ("trackio", "fixture.db")])
def test_the_real_package_still_writes_so(package: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    make_anew(package, tmp_path)
    path = tmp_path / name
    path.write_bytes(gzip.decompress((tmp_path / f"{name}.gz").read_bytes()))
    assert_reads_back(read_log(path).block, ROWS)


def test_nothing_is_written_beside_a_database_whatever_its_name(packed: Path) -> None:
    odd = packed.rename(packed.parent / "odd ?mode=rw&x#1 %41.db")
    before = odd.read_bytes()
    assert_reads_back(read_log(odd).block, ROWS)
    assert_reads_back(read_log(f"{odd}#before").block, FIRST[:3])
    assert odd.read_bytes() == before
    assert [path.name for path in odd.parent.iterdir()] == [odd.name]


def test_what_a_writer_still_holds_in_its_log_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.executescript(mlflow_rows("'loss', 2.5, 1000, 1, 0, 'r1'"))
        writer.execute("INSERT INTO metrics VALUES ('loss', 2.0, 2000, 2, 0, 'r1')")
        writer.commit()
        assert (tmp_path / "live.db-wal").stat().st_size
        assert values(read_log(path).block, "loss") == [2.5, 2.0]


def test_a_locked_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "busy.db", mlflow_rows("'loss', 2.5, 1000, 1, 0, 'r1'"))
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0.01))
    with closing(connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnreadableLog, match="database is locked; if it is in use"):
            read_log(path)


def test_mlflow_nan_and_infinity(tmp_path: Path) -> None:
    largest = "1.7976931348623157e308"
    path = make(
        tmp_path / "m.db",
        mlflow_rows(
            *("'loss', 0, 1000, 1, 1, 'r1'", "'loss', 0, 2000, 2, 0, 'r1'"),
            *(f"'loss', {largest}, 3000, 3, 0, 'r1'", f"'loss', -{largest}, 4000, 4, 0, 'r1'"),
        ),
    )
    assert_reads(read_log(path), "loss=nan 0 inf -inf; clock=1 2 3 4")


def test_mlflow_without_steps_numbers_the_rows(tmp_path: Path) -> None:
    rows = [f"'loss', {value}, {1000 + value}, 0, 0, 'r1'" for value in range(5)]
    reading = read_log(make(tmp_path / "m.db", mlflow_rows(*rows)))
    note = "Every value was logged at step 0: the rows are numbered from 0."
    assert_reads(reading, "step=0 1 2 3 4", note)


def test_mlflow_rows_of_strange_types_are_left_out(tmp_path: Path) -> None:
    strange = ["'loss', 'x', 1, 1, 0", "x'00', 1, 1, 1, 0", "'loss', 1, 'now', 1, 0"]
    strange += ["NULL, 1, 1, 1, 0", "'loss', 1, 1, 1.5, 0", "'loss', NULL, 1, 1, 0"]
    rows = [f"{row}, 'r1'" for row in ("'loss', 2.5, 1000, 1, 0", *strange)]
    assert values(read_log(make(tmp_path / "m.db", mlflow_rows(*rows))).block, "loss") == [2.5]


def test_deleted_runs_and_runs_without_metrics_come_last(tmp_path: Path) -> None:
    script = mlflow_rows("'loss', 2.5, 1000, 1, 0, 'r1'", "'loss', 3.5, 1000, 1, 0, 'r2'")
    script += "INSERT INTO runs VALUES ('r2', 'gone', 9, 'deleted'), ('r3', 'bare', 10, 'active');"
    reading = read_log(make(tmp_path / "m.db", script))
    assert values(reading.block, "loss") == [2.5]
    for run in ("gone", "r2"):
        assert values(read_log(f"{tmp_path / 'm.db'}#{run}").block, "loss") == [3.5]


def test_hf_through_mlflow(tmp_path: Path) -> None:
    rows = [
        f"'{name}', {value}, {1000 * step}, {step}, {is_nan}, 'r1'"
        for step, loss, is_hidden in ((1, 2.5, 0), (2, 0.0, 1))
        for name, value, is_nan in (
            ("loss", loss, 0),
            ("grad_norm", 1, is_hidden),
            ("learning_rate", 0.1, 0),
            ("epoch", 0.1, 0),
        )
    ]
    reading = read_log(make(tmp_path / "m.db", mlflow_rows(*rows)))
    assert_reads(reading, "loss=2.5 nan", ...)
    assert reading.block.quality(LOSS) is Quality.INFERRED


def test_trackio_of_older_versions_and_bad_rows(tmp_path: Path) -> None:
    time = "2026-11-15T04:34:56.5+00:00"
    rows = [
        (1, time, "run", 0, '{"loss": "NaN", "global_step": 10}'),
        (2, time, "run", 1, '{"loss": 2.5, "global_step": 20}'),
        (3, "soon", "run", 2, "{broken"),
        (4, "soon", "run", "x", '{"loss": 2.0, "global_step": 30}'),
        (5, time, "other", 0, '{"loss": 9.0}'),
    ]
    path = make(tmp_path / "t.db", TRACKIO_SCHEMA)
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    assert values(read_log(path).block, "loss") == [9.0]
    reading = read_log(f"{path}#run")
    columns = "step=10 20 30; loss=nan 2.5 2; clock=1794717296.5 1794717296.5 -"
    assert_reads(reading, columns, ...)
    assert "1 row is left out: the metrics are no JSON object." in reading.notes


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("CREATE TABLE x (a);", r"neither MLflow nor trackio \(tables: 'x'\)"),
        ("PRAGMA user_version = 1; CREATE TABLE y (b); DROP TABLE y;", r"\(tables: none\)"),
        (MLFLOW_SCHEMA, "holds no run"),
        (TRACKIO_SCHEMA, "holds no run"),
        (TRACKIO_SCHEMA + "INSERT INTO metrics VALUES (1, 't', 'run', 0, 'x');", "holds no values"),
        (
            "CREATE VIEW metrics AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id FROM n) "
            "SELECT id, id AS timestamp, id AS run_name, id AS step, id AS metrics FROM n;",
            "neither MLflow nor trackio",
        ),
    ],
)
def test_databases_that_hold_no_run(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(UnreadableLog, match=message):
        read_log(make(tmp_path / "x.db", script))


def test_cut_anywhere_what_can_be_read_is_reported(packed: Path) -> None:
    data = packed.read_bytes()
    whole = read_log(packed).block
    for end in range(16, len(data), len(data) // 40):
        packed.write_bytes(data[:end])
        try:
            reading = read_log(packed)
        except LogError:
            continue
        assert any("The database is damaged" in note for note in reading.notes)
        assert set(values(reading.block, "lr")) <= set(values(whole, "lr"))


def test_a_damaged_page_costs_what_comes_after_it(tmp_path: Path) -> None:
    rows = [f"'loss', {step}, {step}, {step}, 0, 'r1'" for step in range(2000)]
    path = make(tmp_path / "m.db", mlflow_rows(*rows))
    data = bytearray(path.read_bytes())
    data[-3 * 4096 : -2 * 4096] = bytes(4096)
    path.write_bytes(data)
    reading = read_log(path)
    number = len(reading.block)
    assert 500 < number < 2000
    assert reading.block.step.tolist() == list(range(number))
    assert any("malformed" in note for note in reading.notes)


def test_work_is_bounded(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_FREE_WORK", 0)
    monkeypatch.setattr(databases, "_WORK_PER_BYTE", 0)
    monkeypatch.setattr(databases, "_WORK_STEP", 10)
    with pytest.raises(UnreadableLog, match="interrupted"):
        read_log(packed)


def test_cells_are_bounded(tmp_path: Path) -> None:
    script = TRACKIO_SCHEMA + ("INSERT INTO metrics VALUES (1, 't', 'run', 0, zeroblob(20000000));")
    with pytest.raises(UnreadableLog, match="too big"):
        read_log(make(tmp_path / "x.db", script))


def test_a_folder_with_a_database(packed: Path) -> None:
    (packed.parent / "thumbs.db").write_bytes(b"something else")
    assert read_log(packed.parent).path == packed
