import json
import math

import pytest
from tests.readers.shapes import Write, values

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import Quality
from trimtab.readers import json_log, log_file, read_log

ROWS = [{"step": step, "loss": 3 - step / 100} for step in range(50)]
LOSSES = [row["loss"] for row in ROWS]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
@pytest.mark.parametrize("name", ["log.json", "log.jsonl", "log.txt"])
def test_an_array_of_objects_is_read(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    block_bytes: int,
    indent: int | None,
) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    reading = read_log(write("\ufeff" + json.dumps(ROWS, indent=indent), name))
    assert reading.format == "json"
    assert values(reading.block, "loss") == LOSSES
    assert reading.notes == ()


def test_nested_objects_nan_and_null(write: Write) -> None:
    text = '[{"step": 1, "train": {"loss": NaN}}, {"step": 2, "lr": 1}, {"step": 3, "train": null}]'
    block = read_log(write(text)).block
    assert block.step.tolist() == [1, 2]
    column = block.column("loss")
    assert column.present.tolist() == [True, False]
    assert math.isnan(column.values[0])


def test_a_history_of_hf_is_known_by_its_names(write: Write) -> None:
    rows = [
        {"step": step, "loss": loss, "grad_norm": norm, "learning_rate": 1e-4, "epoch": step / 100}
        for step, loss, norm in ((10, 2.5, 1.0), (20, 0.0, math.nan))
    ]
    reading = read_log(write(json.dumps(rows)))
    assert reading.block.quality("loss") is Quality.INFERRED
    assert math.isnan(reading.block.column("loss").values[1])


def test_an_array_that_was_cut_off_is_read_up_to_the_cut(write: Write) -> None:
    text = json.dumps(ROWS)
    reading = read_log(write(text[: len(text) // 2]))
    kept = len(reading.block)
    assert 20 < kept < 30
    assert values(reading.block, "loss") == LOSSES[:kept]
    assert reading.notes == (
        f"The array is cut off or damaged after {kept} records; what comes after is left out.",
    )


def test_damage_ends_the_reading_at_a_bounded_cost(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 64)
    monkeypatch.setattr(json_log, "OBJECT_CHARS", 256)
    reading = read_log(
        write('[{"step": 1, "loss": 2}, {"step": 2 oops}, ' + '{"step": 3}, ' * 1000)
    )
    assert len(reading.block) == 1
    assert reading.notes[0].startswith("The array is cut off or damaged after 1 records")


def test_items_that_are_not_objects_are_counted(write: Write) -> None:
    reading = read_log(write('[{"step": 1, "loss": 2}, 7, "text", [1], {}]'))
    assert reading.notes == ("Items of the array that are not objects, left out: 3.",)


@pytest.mark.parametrize("text", ["[]", "[{}]", "[ ]\n"])
def test_an_array_without_records_is_refused(write: Write, text: str) -> None:
    with pytest.raises(UnreadableLog, match="not a JSON array with objects in it"):
        read_log(write(text, "log.json"))


def test_the_format_can_be_given_for_something_else(write: Write) -> None:
    with pytest.raises(UnreadableLog, match="not a JSON array"):
        read_log(write("step,loss\n1,2\n"), format="json")
