"""The public runs are read as Python reads them, and the raw logs as their tables."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.kit.cases import some_of
from tests.kit.public_runs import DATA, MISSING

from trimtab.core.signals import Quality
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


def test_all_runs_are_there() -> None:
    assert len(RUNS) == 78


@pytest.mark.parametrize("path", some_of(RUNS, *RUNS[::8]), ids=lambda path: path.stem)
def test_every_value_is_what_python_reads(path: Path) -> None:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    reading = read_log(path)
    assert (reading.format, reading.notes) == ("csv", ())
    assert reading.block.step.tolist() == [int(row["step"]) for row in rows]
    for foreign, signal in SIGNALS.items():
        column = reading.block.column(signal)
        wanted = [row[foreign] for row in rows]
        assert column.present.tolist() == [cell != "" for cell in wanted]
        np.testing.assert_array_equal(
            column.values, [float(cell) if cell else np.nan for cell in wanted]
        )


def raw_files() -> dict[str, list[Path]]:
    """The files of each series that was published in another form, by its name."""
    index = DATA / "raw" / "index.json"
    names = json.loads(index.read_text()) if index.exists() else {}
    return {name: [DATA / "raw" / file for file in files] for name, files in names.items()}


FORMATS = {
    ".tfevents": "tensorboard",
    ".jsonl": "jsonl",
    ".mllog.txt": "mlperf",
    ".log.txt": "text",
    ".json": "json",
}


LARGE = ("adan_bert_adan", "buildnanogpt_1epoch", "mlperf51_cisco_llama31_8b_n8_r0")


@pytest.mark.parametrize("name", some_of(raw_files(), *(raw_files().keys() - set(LARGE))))
def test_a_raw_log_agrees_with_its_table(name: str, tmp_path: Path) -> None:
    files = raw_files()[name]
    for file in files:
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path if files[0].suffix == ".tfevents" else tmp_path / files[0].name
    reading, table = read_log(path), read_log(DATA / "runs" / f"{name}.csv").block
    raw = reading.block
    # Of a step that was logged twice, the table has the second row, and it has no evaluations.
    last = np.append(raw.step[1:] != raw.step[:-1], True)
    rows = raw.column("loss").present & (raw.attempt == raw.attempt[-1])
    rows &= last if name == "netra_nmt" else True
    np.testing.assert_array_equal(raw.step[rows], table.step)
    compared = []
    for signal in SIGNALS.values():
        ours, theirs = raw.column(signal), table.column(signal)
        both = ours.present[rows] & theirs.present
        if signal == "n_overflow" and reading.format == "text":  # counted to the next record
            found = np.where(ours.present[rows], ours.values[rows], 0)
            np.testing.assert_array_equal(found[both], theirs.values[both])
            assert found[~both].sum() == 0
        elif both.any():
            compared.append(signal)
            bits = 1 / math.log(2) if name.startswith("adan") and signal == "loss" else 1.0
            assert both.sum() >= 0.99 * theirs.present.sum(), signal
            # The tables were written with eight digits.
            np.testing.assert_allclose(
                ours.values[rows][both] * bits, theirs.values[both], rtol=1e-6, err_msg=signal
            )
    assert "loss" in compared
    if name.startswith("adan"):  # fairseq prints means
        assert raw.quality("loss") is raw.quality("grad_norm") is Quality.WINDOW_MEAN
        assert raw.quality("loss_scale") is Quality.RAW
    [format] = [FORMATS[end] for end in FORMATS if path.name.endswith(end)] or ["tensorboard"]
    assert reading.format == ("hf" if name.startswith("hf_") else format)
    assert not any("left out" in note for note in reading.notes if format == "tensorboard")
