"""Files, runs of trackers, guards: objects that know where a run is."""

import gzip
import io
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cli.test_commands import write_run
from tests.kit.synthetic import troubled_run

import trimtab
from trimtab.core.errors import UnreadableLog
from trimtab.journal import RunDirectory
from trimtab.source import read_run

TEXT = "step,loss\n" + "".join(f"{step},{3 - step / 100}\n" for step in range(100))
JUNK = "hello\nworld\n"


def names_of(report: Any) -> str:
    return " ".join([report.source, *report.notes])


# Files and text: read by way of a copy that nobody sees


def test_a_file_is_read_from_where_it_is_and_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("a line before the log\n" + TEXT, encoding="utf-8")
    for mode in ("r", "rb"):
        with path.open(mode) as file:
            file.readline()
            report = trimtab.diagnose(file)
            assert not file.closed
            assert not file.read()
        assert (report.source, report.format, len(report.block)) == (str(path), "csv", 100)


def test_wrappers_of_files() -> None:
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as file:
        file.write(TEXT)
        file.seek(0)
        assert trimtab.diagnose(file).source == file.name
    assert trimtab.diagnose(io.BytesIO(gzip.compress(TEXT.encode()))).source == "BytesIO"


@pytest.mark.parametrize(
    ("given", "name"),
    [(JUNK, "pasted text"), (io.StringIO(JUNK), "StringIO")],
    ids=["text", "file"],
)
def test_no_error_and_no_note_shows_the_copy(given: Any, name: str) -> None:
    with pytest.raises(UnreadableLog) as raised:
        trimtab.diagnose(given)
    assert str(raised.value).startswith(f"{name} begins with 'hello")
    assert raised.value.__suppress_context__
    report = trimtab.diagnose([TEXT, io.StringIO(TEXT + TEXT)])
    assert report.source == "pasted text, StringIO"
    assert tempfile.gettempdir() not in names_of(report)
    assert any(note.startswith("StringIO: 1 header line repeated") for note in report.notes)


def test_hints_for_pasted_text_are_for_python() -> None:
    with pytest.raises(trimtab.TrimtabError, match=r"name it with loss="):
        trimtab.diagnose("step,nothing\n1,2\n")
    lines = "".join(f"Iter {n} Train loss {9 - n / 50}\n" for n in range(1, 90))
    assert "; step= and loss= correct this." in trimtab.diagnose(lines).notes[0]


# Trackers


@dataclass
class WandbRun:
    """As `wandb.Api().run(...)` returns it."""

    name: str = "sunny-sky-1"
    rows: list[dict[str, Any]] = field(default_factory=list)

    def scan_history(self) -> Any:
        yield from self.rows


def test_a_run_of_wandb() -> None:
    rows: list[dict[str, Any]] = [
        {"_step": 3 * n, "train/global_step": n, "train/loss": 3 - n / 100, "_runtime": 1.0}
        for n in range(100)
    ]
    rows[50]["train/loss"] = "NaN"
    report = trimtab.diagnose(WandbRun(rows=rows))
    assert (report.source, report.format) == ("W&B run sunny-sky-1", "wandb")
    assert report.block.step[-1] == 99
    assert np.isnan(report.block.column("loss").values[50])


def test_a_run_of_wandb_that_is_being_logged_to() -> None:
    live = SimpleNamespace(sync_dir="wandb/offline-run-1", log=print, finish=print)
    with pytest.raises(UnreadableLog, match=r"call finish\(\).* folder: wandb/offline-run-1$"):
        trimtab.diagnose(live)


def mlflow_run(metrics: dict[str, float]) -> Any:
    return SimpleNamespace(
        info=SimpleNamespace(run_id="ab12"), data=SimpleNamespace(metrics=metrics)
    )


class MlflowClient:
    """Has the values of one metric, in the order in which a server may send them."""

    def get_run(self, run_id: str) -> Any:
        return mlflow_run({"train_loss": 2.0})

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        largest = np.finfo(np.float64).max
        values = [largest if n == 90 else 3 - n / 100 for n in range(100)]
        return [
            SimpleNamespace(key=key, value=value, step=n, timestamp=1_000 * (n + 1))
            for n, value in enumerate(values)
        ][::-1]


def test_a_run_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    started = mlflow_run({})  # an active run: nothing was logged when it was made
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UnreadableLog, match=r"MLflow run ab12: .*give mlflow\.db or"):
        trimtab.diagnose(started)
    package = SimpleNamespace(MlflowClient=MlflowClient)
    monkeypatch.setitem(sys.modules, "mlflow", package)
    report = trimtab.diagnose(started)
    assert (report.source, report.format) == ("MLflow run ab12", "mlflow")
    assert report.block.step.tolist() == list(range(100))
    assert report.block.column("loss").values[90] == np.inf


def test_what_a_package_raises_is_part_of_a_sentence() -> None:
    class Offline(WandbRun):
        def scan_history(self) -> Any:
            raise ConnectionError("no route to the server")

    expected = "^W&B run sunny-sky-1 cannot be read: ConnectionError: no route to the server$"
    with pytest.raises(UnreadableLog, match=expected):
        trimtab.diagnose(Offline())


# Trimtab's own


def test_a_run_directory_in_every_form(tmp_path: Path) -> None:
    root = write_run(troubled_run(), tmp_path / "run")
    expected = trimtab.diagnose(str(root)).to_dict()
    guard = SimpleNamespace(run_dir=root)
    for given in (root, RunDirectory(root), read_run(root), guard, [root]):
        assert {**trimtab.diagnose(given).to_dict(), "source": ""} == {**expected, "source": ""}
    with pytest.raises(UnreadableLog, match="records nothing here; give the guard of rank 0"):
        trimtab.diagnose(SimpleNamespace(run_dir=None))
    with pytest.raises(trimtab.TrimtabError, match="has been read already"):
        trimtab.diagnose(read_run(root), loss="lm loss")
