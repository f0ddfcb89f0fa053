import json
import math
from typing import Any

import pytest
from tests.readers.shapes import Write, values

from trimtab.core.errors import UnreadableLog
from trimtab.readers import read_log


def golden(**metrics: Any) -> str:
    fields = {"start_step": 1, "end_step": 9, "step_interval": 4}
    return json.dumps(
        {name.replace("_", " "): {**fields, "values": v} for name, v in metrics.items()}
    )


def test_steps_of_all_metrics_are_joined(write: Write) -> None:
    text = golden(lm_loss={"1": 10.5, "5": 9.5, "9": 9.0}, num_zeros={"5": 3, "9": 4})
    reading = read_log(write(text, "values.json"))
    assert reading.format == "json"
    assert reading.block.step.tolist() == [1, 5, 9]
    assert values(reading.block, "loss") == [10.5, 9.5, 9.0]
    assert values(reading.block, "num zeros") == [None, 3.0, 4.0]


def test_a_word_means_not_recorded_and_a_bare_nan_is_one(write: Write) -> None:
    text = golden(lm_loss={"1": 10.5, "5": "nan", "9": math.nan})
    block = read_log(write(text)).block
    assert block.step.tolist() == [1, 9]
    assert block.column("loss").present.all()
    assert math.isnan(block.column("loss").values[1])


def test_older_files_have_lists(write: Write) -> None:
    assert read_log(write(golden(lm_loss=[3.0, 2.0, 1.0]))).block.step.tolist() == [1, 5, 9]


@pytest.mark.parametrize(
    "values",
    [{}, [], {"x": 1.0}, {"inf": 1.0}, {"1": "x"}, None, 3, {"1": {}}],
)
def test_values_that_are_none(write: Write, values: object) -> None:
    with pytest.raises(UnreadableLog, match="holds no series of numbers"):
        read_log(write(golden(lm_loss=values)))


def test_a_cut_file_says_so(write: Write) -> None:
    text = golden(lm_loss={"1": 10.5, "5": 9.5})
    with pytest.raises(UnreadableLog, match="cannot be read as JSON"):
        read_log(write(text[:-10]))
