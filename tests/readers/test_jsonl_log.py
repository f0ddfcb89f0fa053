import json
import math

import numpy as np
import pytest
from tests.readers.shapes import Write, values

from trimtab.readers import log_file, read_log


def test_plain_lines(write: Write) -> None:
    reading = read_log(write('{"step": 1, "loss": 2.5}\n\n{"step": 2, "loss": 2}\n', "log.txt"))
    assert reading.format == "jsonl"
    assert reading.block.step.tolist() == [1, 2]
    assert values(reading.block, "loss") == [2.5, 2.0]
    assert reading.notes == ()


def test_values_that_are_not_finite(write: Write) -> None:
    words = ["NaN", "Infinity", "-Infinity"]
    cells = [*words, *(f'"{word}"' for word in [*words, "nan", "inf", "-inf"])]
    text = "".join(f'{{"step": {n}, "loss": {cell}}}\n' for n, cell in enumerate(cells))
    column = read_log(write(text)).block.column("loss")
    assert column.present.all()
    nan, inf = math.nan, math.inf
    np.testing.assert_array_equal(
        column.values, [nan, inf, -inf, nan, inf, -inf, nan, inf, -inf], strict=True
    )


def test_null_and_absent_are_missing(write: Write) -> None:
    text = '{"step": 1, "loss": null, "lr": 1}\n{"step": 2, "lr": 1}\n{"step": 3, "loss": 2.5}\n'
    reading = read_log(write(text))
    assert values(reading.block, "loss") == [None, None, 2.5]
    assert values(reading.block, "lr") == [1, 1, None]


def test_lines_with_different_keys_keep_their_order(write: Write) -> None:
    text = "".join(
        json.dumps({"step": n, "eval_loss": n} if n % 3 else {"loss": n, "step": n}) + "\n"
        for n in range(10)
    )
    block = read_log(write(text)).block
    assert block.step.tolist() == list(range(10))
    assert values(block, "loss") == [None if n % 3 else n for n in range(10)]
    assert values(block, "eval_loss") == [n if n % 3 else None for n in range(10)]


def test_nested_objects_are_flattened(write: Write) -> None:
    text = '{"step": 1, "train": {"loss": 2.5, "optim": {"lr": 0.1}}, "deep": {}}\n'
    reading = read_log(write(text))
    assert reading.names["loss"] == "train/loss"
    assert reading.block.columns.keys() == {"loss", "lr"}


def test_what_is_no_number_is_left_out(write: Write) -> None:
    text = (
        '{"step": 1, "loss": 2.5, "ok": true, "list": [1, 2], "name": "x", "lr": 1}\n'
        '{"step": 2, "loss": false, "ok": false, "list": [], "name": "y", "lr": 1}\n'
        '{"step": 3, "loss": [1], "lr": {}}\n'
    )
    reading = read_log(write(text))
    assert reading.block.columns.keys() == {"loss", "lr"}
    assert values(reading.block, "loss") == [2.5, None]
    assert reading.notes == (
        "Columns without a number, left out: 'ok', 'list', 'name'.",
        "Cells of 'loss' that are not numbers, treated as missing: 2 (the first is 'bool').",
        "Rows with a step and nothing else, left out: 1.",
    )


@pytest.mark.parametrize("digits", [30, 400, 10_000])
def test_integers_of_any_size(write: Write, digits: int) -> None:
    text = f'{{"step": 1, "loss": 2.5, "big": {"9" * digits}}}\n{{"step": {"9" * digits}}}\n'
    reading = read_log(write(text))
    assert values(reading.block, "big") == [float("9" * digits)]
    assert "Rows without a usable step, left out: 1." in reading.notes


def test_lines_that_are_no_objects_are_skipped(write: Write) -> None:
    text = '{"step": 1, "loss": 2.5}\nhello\n[1]\n3\n{"step": 2,}\n{} x\n{"step": 3, "loss": 2}\n'
    reading = read_log(write(text))
    assert reading.block.step.tolist() == [1, 3]
    assert reading.notes == (
        "Lines that are not JSON objects, skipped: 5 (the first is line 2, 'hello').",
    )


def test_a_cut_last_line_is_left_out(write: Write) -> None:
    reading = read_log(write('{"step": 1, "loss": 2.5}\n{"step": 2, "lo'))
    assert len(reading.block) == 1
    assert reading.notes == ("Last line cut off in the middle, left out: 1.",)


def test_a_whole_last_line_without_an_end_is_kept(write: Write) -> None:
    assert len(read_log(write('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2}')).block) == 2


def test_a_gap_of_nul_bytes(write: Write) -> None:
    reading = read_log(
        write(b'{"step": 1, "loss": 2.5}\n' + b"\0" * 99 + b'{"step": 2, "loss": 2}\n')
    )
    assert len(reading.block) == 2


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_deep_nesting_does_not_crash(write: Write, opening: str) -> None:
    closing = "}" if opening[0] == "{" else "]"
    for depth in (20, 900, 100_000):
        nested = opening * depth + "1" + closing * depth
        text = f'{{"step": 1, "loss": 2.5}}\n{{"step": 2, "loss": 2, "x": {nested}}}\n'
        assert len(read_log(write(text)).block) >= 1


def test_very_long_lines(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    long = '{"step": 2, "loss": 2, "text": "' + "x" * 100_000 + '"}\n'
    text = '{"step": 1, "loss": 2.5}\n' + long + '{"step": 3, "loss": 2}\n'
    assert len(read_log(write(text)).block) == 3
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(log_file, "LINE_BYTES", 1 << 12)
    reading = read_log(write(text))
    assert reading.block.step.tolist() == [1, 3]
    assert "left out: 1." in reading.notes[0]


def test_very_long_names_are_not_metrics(write: Write) -> None:
    text = json.dumps({"step": 1, "loss": 2.5, "a" * 200: {"b" * 200: {"c": 1}, "d": 2}})
    reading = read_log(write(text))
    assert reading.block.columns.keys() == {"loss", "a" * 200 + "/d"}


def test_one_document_over_many_lines(write: Write) -> None:
    text = json.dumps({"history": [{"step": 1, "loss": 2.5}]}, indent=2)
    assert values(read_log(write(text, "log.json")).block, "loss") == [2.5]


def test_one_document_in_one_line(write: Write) -> None:
    text = json.dumps({"global_step": 7, "history": [{"step": 1, "loss": 2.5}]})
    assert values(read_log(write(text, "log.json")).block, "loss") == [2.5]


def test_half_a_character_in_a_name(write: Write) -> None:
    reading = read_log(write('{"step": 1, "loss": 2.5, "\\ud800": 1}\n'))
    assert "?" in reading.block.columns


def test_a_key_that_occurs_twice_after_flattening(write: Write) -> None:
    reading = read_log(write('{"step": 1, "loss": 2.5, "a/b": 1, "a": {"b": 2}}\n'))
    assert values(reading.block, "a/b") == [2]
