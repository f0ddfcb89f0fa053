"""JSON lines, arrays of objects, and golden values of Megatron-LM."""

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from tests.readers.shapes import Write, assert_reads, cells

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import Quality
from trimtab.readers import json_log, log_file, read_log

ROWS = [{"step": step, "loss": 3 - step / 100} for step in range(50)]
LOSSES = f"loss={cells([row['loss'] for row in ROWS])}"
NAN = math.nan


def lines(cells: Iterable[str]) -> str:
    """A line for each loss, as it is written."""
    return "".join(f'{{"step": {n}, "loss": {cell}}}\n' for n, cell in enumerate(cells))


def golden(**metrics: Any) -> str:
    fields = {"start_step": 1, "end_step": 9, "step_interval": 4}
    return json.dumps(
        {name.replace("_", " "): fields | {"values": v} for name, v in metrics.items()}
    )


CUT_AFTER_20 = json.dumps(ROWS)[: len(json.dumps(ROWS[:20])) + 9]
DOCUMENT = {"global_step": 7, "history": [{"step": 1, "loss": 2.5}]}
LINES: dict[str, tuple[Any, ...]] = {
    "plain": ('{"step": 1, "loss": 2.5}\n\n{"step": 2, "loss": 2}\n', "step=1 2; loss=2.5 2"),
    "not finite": (lines(["NaN", "Infinity", "-Infinity"]), "loss=nan inf -inf"),
    "not finite, in quotes": (lines(['"NaN"', '"Infinity"', '"-inf"']), "loss=nan inf -inf"),
    "null and absent are missing": (
        '{"step": 1, "loss": null, "lr": 1}\n{"step": 2, "lr": 1}\n{"step": 3, "loss": 2.5}\n',
        "loss=- - 2.5; lr=1 1 -",
    ),
    "different keys, in their order": (
        '{"step": 1, "eval_loss": 9}\n{"loss": 8, "step": 2}\n{"step": 3, "eval_loss": 7}\n',
        "step=1 2 3; loss=- 8 -; eval_loss=9 - 7",
    ),
    "nested objects": (
        '{"step": 1, "train": {"loss": 2.5, "optim": {"lr": 0.1}}, "deep": {}}\n',
        "loss=2.5; lr=0.1",
    ),
    "what is no number": (
        '{"step": 1, "loss": 2.5, "ok": true, "list": [1, 2], "name": "x", "lr": 1}\n'
        '{"step": 2, "loss": false, "ok": false, "list": [], "name": "y", "lr": 1}\n'
        '{"step": 3, "loss": [1], "lr": {}}\n',
        "loss=2.5 -; lr=1 1",
        "Columns without a number, left out: 'ok', 'list', 'name'.",
        "2 cells of 'loss' are no number and read as missing (the first: 'bool').",
        "1 row with a step and nothing else is left out.",
    ),
    "integers of any size": (
        f'{lines(["9" * 30, "9" * 400, "9" * 10_000])}{{"step": {"9" * 400}, "loss": 1}}\n',
        "loss=1e30 inf inf",
        "1 row without a usable step is left out.",
    ),
    "lines that are no objects": (
        '{"step": 1, "loss": 2.5}\nhello\n[1]\n3\n{"step": 2,}\n{} x\n{"step": 3, "loss": 2}\n',
        "step=1 3",
        "5 lines are no JSON object and left out (the first: line 2, 'hello').",
    ),
    "a cut last line": (
        '{"step": 1, "loss": 2.5}\n{"step": 2, "lo',
        "step=1",
        "1 line cut off in the middle is left out.",
    ),
    "a whole last line without an end": (lines("123").strip(), "step=0 1 2"),
    "a gap of NUL bytes": (
        b'{"step": 1, "loss": 2.5}\n' + b"\0" * 99 + b'{"step": 2, "loss": 2}\n',
        "step=1 2",
        "99 NUL bytes, as a crash leaves them, are left out.",
    ),
    "very long names are no metrics": (
        json.dumps({"step": 1, "loss": 2.5, "a" * 200: {"b" * 200: {"c": 1}, "d": 2}}),
        f"loss=2.5; {'a' * 200}/d=2",
    ),
    "half a character in a name": ('{"step": 1, "loss": 2.5, "\\ud800": 1}\n', "?=1"),
    "a key twice after flattening": ('{"step": 1, "loss": 2.5, "a/b": 1, "a": {"b": 2}}', "a/b=2"),
}
DOCUMENTS: dict[str, tuple[Any, ...]] = {
    "one over many lines": (json.dumps(DOCUMENT, indent=2), "step=1; loss=2.5"),
    "one in one line": (json.dumps(DOCUMENT), "step=1; loss=2.5"),
    "an array": ("\ufeff" + json.dumps(ROWS), LOSSES),
    "an array over many lines": (json.dumps(ROWS, indent=2), LOSSES),
    "nested objects, NaN and null": (
        '[{"step": 1, "train": {"loss": NaN}}, {"step": 2, "lr": 1}, {"step": 3, "train": null}]',
        "step=1 2; loss=nan -",
        ...,
    ),
    "items that are not objects": (
        '[{"step": 1, "loss": 2}, 7, "text", [1], {}]',
        "step=1",
        "3 items of the array are no object and left out.",
    ),
    "an array that was cut off": (
        CUT_AFTER_20,
        f"step={cells(range(20))}",
        "The array is cut off or damaged after 20 records; what comes after is left out.",
    ),
    "golden values": (
        golden(lm_loss={"1": 10.5, "5": 9.5, "9": 9.0}, num_zeros={"5": 3, "9": 4}),
        "step=1 5 9; loss=10.5 9.5 9; num zeros=- 3 4",
    ),
    "golden values: a word is not recorded, a bare NaN is one": (
        golden(lm_loss={"1": 10.5, "5": "nan", "9": NAN}),
        "step=1 9; loss=10.5 nan",
    ),
    "golden values of older files": (golden(lm_loss=[3.0, 2.0, 1.0]), "step=1 5 9; loss=3 2 1"),
}
"""What is tested, to the text, its columns, and the notes."""


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
@pytest.mark.parametrize(
    ("format", "name"), [*(("jsonl", n) for n in LINES), *(("json", n) for n in DOCUMENTS)]
)
def test_what_is_read(
    write: Write, monkeypatch: pytest.MonkeyPatch, format: str, name: str, block_bytes: int
) -> None:
    text, *wanted = (LINES if format == "jsonl" else DOCUMENTS)[name]
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    for suffix in ("log", "json"):
        reading = read_log(write(text, f"log.{suffix}"))
        assert reading.format == format
        assert_reads(reading, *wanted)


def test_a_history_of_hf_is_known_by_its_names(write: Write) -> None:
    rows = [
        {"step": step, "loss": loss, "grad_norm": norm, "learning_rate": 1e-4, "epoch": step / 100}
        for step, loss, norm in ((10, 2.5, 1.0), (20, 0.0, NAN))
    ]
    reading = read_log(write(json.dumps(rows)))
    assert reading.block.quality("loss") is Quality.INFERRED
    assert_reads(reading, "loss=2.5 nan", ...)


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


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_deep_nesting_does_not_crash(write: Write, opening: str) -> None:
    closing = "}" if opening[0] == "{" else "]"
    for depth in (20, 900, 100_000):
        nested = opening * depth + "1" + closing * depth
        text = f'{{"step": 1, "loss": 2.5}}\n{{"step": 2, "loss": 2, "x": {nested}}}\n'
        assert len(read_log(write(text)).block) >= 1


NO_ARRAY = "not a JSON array"
NO_SERIES = "holds no series of numbers"
NO_VALUES: list[Any] = [{}, [], {"x": 1.0}, {"inf": 1.0}, {"1": "x"}, None, 3, {"1": {}}]


@pytest.mark.parametrize(
    ("text", "format", "message"),
    [
        ("[]", None, f"{NO_ARRAY} with objects in it"),
        ("[{}]", None, f"{NO_ARRAY} with objects in it"),
        ("[ ]\n", None, f"{NO_ARRAY} with objects in it"),
        ("step,loss\n1,2\n", "json", NO_ARRAY),
        (golden(lm_loss={"1": 10.5})[:-10], None, "cannot be read as JSON"),
        *((golden(lm_loss=values), None, NO_SERIES) for values in NO_VALUES),
    ],
)
def test_what_is_refused(write: Write, text: str, format: str | None, message: str) -> None:
    with pytest.raises(UnreadableLog, match=message):
        read_log(write(text, "log.json"), format=format)
