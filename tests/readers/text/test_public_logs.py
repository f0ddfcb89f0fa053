"""Public logs, as they were published, give the series that were taken out of them by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.kit.public_runs import DATA, MISSING

from trimtab.core.block import Block
from trimtab.core.signals import Quality
from trimtab.readers import read_log

LOGS = sorted((DATA / "raw").glob("*.txt"))

pytestmark = pytest.mark.skipif(not LOGS, reason=MISSING)

FORMATS = {
    "adan_bert_adam": "text",
    "adan_bert_adan": "text",
    "buildnanogpt_1epoch": "text",
    "deepspeed_rlhf_opt13b": "text",
    "mlperf51_cisco_llama31_8b_n16_r1": "mlperf",
    "mlperf51_cisco_llama31_8b_n8_r0": "mlperf",
    "moddednanogpt_muon_124m": "text",
    "paramgolf_quasi10b": "text",
}
SIGNALS = ("loss", "grad_norm", "lr", "loss_scale", "tokens_per_second", "step_seconds")


def series_of(path: Path) -> str:
    return path.name.split(".")[0]


def test_all_text_logs_are_known() -> None:
    index = json.loads((DATA / "raw" / "index.json").read_text())
    texts = {name for name, files in index.items() if files[0].endswith(".txt")}
    assert texts == set(FORMATS) == {series_of(path) for path in LOGS}


@pytest.mark.parametrize("path", LOGS, ids=series_of)
def test_log_and_series_agree(path: Path) -> None:
    name = series_of(path)
    reading = read_log(path)
    assert reading.format == FORMATS[name]
    series = read_log(DATA / "runs" / f"{name}.csv").block
    rows = reading.block.column("loss").present
    np.testing.assert_array_equal(reading.block.step[rows], series.step)
    bits = 1 / math.log(2) if name.startswith("adan") else 1.0
    compared = [signal for signal in SIGNALS if _comparable(signal, reading.block, series)]
    assert "loss" in compared
    for signal in compared:
        read, taken = reading.block.column(signal), series.column(signal)
        both = read.present[rows] & taken.present
        assert both.sum() >= 0.99 * taken.present.sum(), signal
        values = read.values[rows][both] * (bits if signal == "loss" else 1.0)
        # The series were written with eight digits.
        np.testing.assert_allclose(values, taken.values[both], rtol=1e-6, err_msg=signal)


def _comparable(signal: str, log: Block, series: Block) -> bool:
    return log.column(signal).recorded and series.column(signal).recorded


def test_overflows_are_counted_to_the_record_that_follows() -> None:
    for name in ("adan_bert_adam", "deepspeed_rlhf_opt13b"):
        log = read_log(DATA / "raw" / f"{name}.log.txt").block.column("n_overflow")
        series = read_log(DATA / "runs" / f"{name}.csv").block.column("n_overflow")
        np.testing.assert_array_equal(np.where(log.present, log.values, 0), series.values)


def test_means_of_fairseq_are_known_as_such() -> None:
    block = read_log(DATA / "raw" / "adan_bert_adan.log.txt").block
    assert block.quality("loss") is block.quality("grad_norm") is Quality.WINDOW_MEAN
    assert block.quality("loss_scale") is Quality.RAW
