"""The public runs are read as Python's own csv and float read them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tests.kit.cases import some_of
from tests.kit.public_runs import DATA, MISSING
from tests.readers.shapes import values

from trimtab.core.block import Block
from trimtab.readers import read_log

RUNS = sorted((DATA / "runs").glob("*.csv"))

pytestmark = pytest.mark.skipif(not RUNS, reason=MISSING)

SIGNALS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "loss_scale": "loss_scale",
    "tokens_per_s": "tokens_per_second",
    "step_time_s": "step_seconds",
    "n_overflow": "n_overflow",
}


@pytest.fixture(scope="module")
def points() -> dict[str, int]:
    """How many rows each run has, by its labels."""
    series = json.loads((DATA / "runs" / "labels.json").read_text())["series"]
    return {name: entry["points"] for name, entry in series.items()}


def test_all_runs_are_there() -> None:
    assert len(RUNS) == 78


@pytest.mark.parametrize("path", some_of(RUNS, *RUNS[::6]), ids=lambda path: path.stem)
def test_every_value_is_what_python_reads(path: Path, points: dict[str, int]) -> None:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    reading = read_log(path)
    assert reading.format == "csv"
    assert reading.notes == ()
    assert len(reading.block) == points[path.stem]
    assert reading.block.step.tolist() == [int(row["step"]) for row in rows]
    for foreign, signal in SIGNALS.items():
        column = reading.block.column(signal)
        wanted = [row[foreign] for row in rows]
        assert column.present.tolist() == [cell != "" for cell in wanted]
        np.testing.assert_array_equal(
            column.values, [float(cell) if cell else np.nan for cell in wanted]
        )


def test_json_lines_and_csv_of_the_same_run_agree() -> None:
    reading = read_log(DATA / "raw" / "netra_nmt.jsonl")
    lines = reading.block
    table = read_log(DATA / "runs" / "netra_nmt.csv").block
    # The table has no evaluation rows, and of a step that was logged twice only the second row.
    last = np.append(lines.step[1:] != lines.step[:-1], True)
    rows = last & lines.column("loss").present
    np.testing.assert_array_equal(lines.step[rows], table.step)
    for signal in ("loss", "lr"):
        assert lines.column(signal).present[rows].all()
        np.testing.assert_array_equal(
            lines.column(signal).values[rows], table.column(signal).values
        )
    assert values(lines, "eval_loss")[-1] is None
    assert lines.column("eval_loss").present.sum() == 3
    assert reading.notes == ("loss is taken from 'loss'; kept under its own name: 'train_loss'.",)


def series(kind: str) -> list[str]:
    """The series whose raw files end so."""
    index = DATA / "raw" / "index.json"
    names = json.loads(index.read_text()) if index.exists() else {}
    return [name for name, files in names.items() if files[0].endswith(kind)]


def assert_agrees(raw: Block, name: str, signals: tuple[str, ...]) -> None:
    """The rows of a raw log with a loss are those of its table, which has 8 digits."""
    table = read_log(DATA / "runs" / f"{name}.csv").block
    rows = raw.column("loss").present & (raw.attempt == raw.attempt[-1])
    np.testing.assert_array_equal(raw.step[rows], table.step)
    for signal in signals:
        ours, theirs = raw.column(signal), table.column(signal)
        np.testing.assert_array_equal(ours.present[rows], theirs.present)
        np.testing.assert_allclose(ours.values[rows], theirs.values, rtol=1e-7)


@pytest.mark.parametrize("name", series(".json"))
def test_json_documents_agree_with_their_tables(name: str) -> None:
    reading = read_log(DATA / "raw" / f"{name}.json")
    is_hf = name.startswith("hf_")
    assert reading.format == ("hf" if is_hf else "json")
    signals = ("loss", "grad_norm", "lr") if is_hf else ("loss", "step_seconds")
    assert_agrees(reading.block, name, signals)


@pytest.mark.parametrize("name", series(".tfevents"))
def test_event_files_agree_with_their_tables(name: str, tmp_path: Path) -> None:
    for file in (DATA / "raw").glob(f"{name}.*.tfevents"):
        (tmp_path / file.name).symlink_to(file)
    reading = read_log(tmp_path)
    assert reading.format == "tensorboard"
    assert not any("left out" in note or "Damaged" in note for note in reading.notes)
    assert_agrees(reading.block, name, ("loss", "grad_norm"))
