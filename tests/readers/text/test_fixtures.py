"""Logs that the trainers' own code has written are read as they were meant.

Beside each log is what its writer was given, and which version of which package it was.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.core.signals import Quality
from trimtab.readers import read_log

FIXTURES = Path(__file__).parent / "fixtures"
MADE = sorted(FIXTURES.glob("*.log"))

DIGITS = {"nemo": 1e-3, "olmo": 1e-3, "automodel": 1e-2, "fairseq": 1e-5}
"""By how much a writer rounds a value, at most."""
DECIMALS = {
    ("megatron", "grad_norm"): 5e-4,
    ("megatron", "step_seconds"): 5e-5,
    ("torchtitan", "loss"): 5e-6,
    ("torchtitan", "grad_norm"): 5e-5,
    ("torchtitan", "eval_loss"): 5e-5,
    ("automodel", "loss"): 5e-5,
    ("automodel", "grad_norm"): 5e-5,
    ("fairseq", "loss"): 5e-4,
    ("deepspeed", "loss"): 5e-5,
    ("fairseq", "grad_norm"): 5e-4,
    ("olmo", "lr"): 5e-5,
}
"""The same where it prints so many decimals, however small the value."""
QUALITIES = {
    "megatron": {"loss": Quality.INFERRED, "step_seconds": Quality.WINDOW_MEAN},
    "nemo": {"loss": Quality.WINDOW_MEAN, "step_seconds": Quality.WINDOW_MEAN},
    "fairseq": dict.fromkeys(("loss", "grad_norm", "tokens_per_second"), Quality.WINDOW_MEAN),
}


def truth(path: Path) -> Any:
    return json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.stem)
def test_what_the_writer_was_given_is_read(path: Path) -> None:
    rows = truth(path)["rows"]
    reading = read_log(path)
    assert reading.format == ("mlperf" if path.stem == "mlperf" else "text")
    assert any("cut off in the middle is left out." in note for note in reading.notes)
    assert reading.block.step.tolist() == [row["step"] for row in rows]
    assert reading.block.attempt[-1] == 1
    assert dict(reading.block.qualities) == QUALITIES.get(path.stem, {})
    for signal in {name for row in rows for name in row} - {"step"}:
        column = reading.block.column(signal)
        assert column.present.tolist() == [signal in row for row in rows], signal
        np.testing.assert_allclose(
            column.values,
            [row.get(signal, np.nan) for row in rows],
            rtol=DIGITS.get(path.stem, 1e-6),
            atol=DECIMALS.get((path.stem, signal), 0),
            err_msg=signal,
        )


def test_a_skipped_interval_has_no_loss_and_a_dropped_one_is_nan() -> None:
    notes = read_log(FIXTURES / "megatron.log", format="text").notes
    assert "1 record has no loss, as all iterations were skipped." in notes
    assert any(note.startswith("2 records have no 'lm loss', which Megatron") for note in notes)
