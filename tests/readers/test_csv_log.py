from typing import Any

import pytest
from tests.readers.shapes import Write, assert_reads, cells, values

from trimtab.core.errors import LogError, NoUsableLoss, UnreadableLog
from trimtab.readers import csv_log, log_file, read_log
from trimtab.readers.csv_log import is_csv

SHORT = "1 row has fewer cells than the header; the others are missing."
LONG = "1 row has more cells than the header; the extra ones are left out."
CUT = "1 line cut off in the middle is left out."
OPEN = "1 quote is never closed."
WORDS = "2 cells of 'loss' are no number and read as missing (the first: 'oops')."
PLAIN = "".join(f"{step},2.5\n" for step in range(csv_log.QUOTED_LINES * 3))
PLAIN_STEPS = f"step={cells(range(csv_log.QUOTED_LINES * 3))}"
TEXT = "Columns without a number, left out: 'a'."
RESTART = "The step goes back once, as after a restart."


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiters_line_ends_and_byte_order_mark(
    write: Write, delimiter: str, end: str, mark: str
) -> None:
    rows = [["step", "loss", "lr"], ["1", "2.5", "1e-4"], ["2", "2.25", "1e-4"]]
    path = write(mark + end.join(delimiter.join(row) for row in rows) + end, "log.txt")
    reading = read_log(path)
    assert reading.format == "csv"
    assert_reads(reading, "step=1 2; loss=2.5 2.25")


TEXTS: dict[str, tuple[Any, ...]] = {
    "the delimiter that makes most names": ('step;"loss, total";a;b\n1;2.5;3;4\n', "loss=2.5; b=4"),
    "quotes": (
        '"step","loss","a"\n"1","2.5","4, ""b"""\n"2","",""\n3,1.5,x\n',
        "loss=2.5 1.5",
        ...,
    ),
    "a quoted cell over lines": ('step,a,loss\n1,"one\n2,9.0,\n",2.5\n3,x,1.5\n', "step=1 3", ...),
    "a quote left open at the end": ('step,loss,a\n1,2.5,x\n2,2.0,"x\n', "loss=2.5 2", OPEN, TEXT),
    "a quote that is never closed costs its row": (
        f'step,loss\n"0,9\n{PLAIN}',
        PLAIN_STEPS,
        OPEN,
        ...,
    ),
    "an open quote does not fill the memory": (f'step,loss\n"\n{PLAIN}', PLAIN_STEPS, ...),
    "missing cells": (
        "step,loss,lr\n1,,1\n2,null,1\n3,None,1\n4,NA,1\n5,-,1\n6,n/a,1\n7,1,1\n",
        "loss=- - - - - - 1",
    ),
    "not finite": (
        "step,loss\n1,nan\n2,-inf\n3,Infinity\n4,1.#INF\n5,1.#QNAN\n",
        "loss=nan -inf inf inf nan",
    ),
    "text among numbers": ("step,loss,lr\n1,2.5,1\n2,oops,1\n3,1_0,1\n", "loss=2.5 - -", WORDS),
    "columns without a number": ("step,loss,a,b\n1,2.5,x,\n2,2.4,y,\n", "loss=2.5 2.4", TEXT),
    "ragged rows": (
        "step,loss,lr\n1,2.5\n2,2.4,1,7,8\n3,2.3,1,\n4,2.2,1\n",
        "loss=2.5 2.4 2.3 2.2; lr=- 1 1 1",
        SHORT,
        LONG,
    ),
    "a cut last line": ("step,loss,lr\n100,2.5,1\n200,2.4,1\n30", "step=100 200", CUT),
    "a whole last line without an end": ("step,loss\n1,2.5\n2,2.4", "step=1 2"),
    "the same in quotes": ('"step","loss"\n"1","2.5"\n"2","2.25"', "step=1 2"),
    "repeated headers": (
        "step,loss\n1,2.5\n2,2.4\nstep,loss\n1,2.3\nstep,loss\n",
        "loss=2.5 2.4 2.3; attempt=0 0 1",
        "2 header lines repeated among the rows are skipped.",
        RESTART,
    ),
    "a header that changes": (
        "step,loss,lr\n1,2.5,0.1\nstep,lr,loss,extra\n2,0.1,2.4,7\n",
        "loss=2.5 2.4; lr=0.1 0.1; extra=- 7",
        "1 header line among the rows has other columns, which are used from there on.",
    ),
    "an index without a name": (
        ",step,loss\n0,1,2.5\n,2,2.4\n,step,loss\n2,3,2.3\n",
        "step=1 2 3; column 1=0 - 2",
        ...,
    ),
    "names that occur twice": (
        "step,loss,loss,loss (2)\n1,2.5,3.5,4.5\n",
        "loss=2.5; loss (2)=3.5; loss (2) (2)=4.5",
    ),
    "NUL bytes": (
        b"step,loss\n1,2.5\n\0\0\0\0" + b"2,2.4\n\0",
        "loss=2.5 2.4",
        "5 NUL bytes, as a crash leaves them, are left out.",
    ),
    "a very long number": (f"step,loss\n1,0.{'3' * 20_000}\n", f"loss={1 / 3}"),
    "blank lines and bytes that are not UTF-8": (
        b"\n  \nstep,loss,caf\xe9\n\n1,2.5,3\n\t\n2,2.4,4\n",
        "caf\ufffd=3 4",
    ),
    "control characters in names do not act": ("step,loss,\x1b[31mred\n1,2.5,3\n", "?[31mred=3"),
    "commas in a list are not decimal": (
        "step;loss;betas\n1;2.5;0.9,0.95\n2;2.25;[1,2]\n",
        "loss=2.5 2.25",
        ...,
    ),
    "a cell with a decimal comma in quotes": (
        'step;loss;a, b\n1;"2,5";x, 3,4 y\n',
        "loss=2.5",
        ...,
    ),
    "and between blanks": (
        "step;loss;a, b\n1; 2,5 ;x, 3,4 y\n2;+2,5;z\n3;2.5;z\n",
        "loss=2.5 2.5 2.5",
        ...,
    ),
}
"""What is tested, to the text, its columns, and the notes."""


@pytest.mark.parametrize("block_bytes", [5, 1 << 20])
@pytest.mark.parametrize("name", TEXTS)
def test_what_is_read(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str, block_bytes: int
) -> None:
    text, *wanted = TEXTS[name]
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    reading = read_log(write(text))
    assert reading.format == "csv"
    assert_reads(reading, *wanted)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('"step,loss', UnreadableLog, "nothing but a header line"),
        ("step,loss", UnreadableLog, "nothing but a header line"),
        ("step,loss\nstep,loss\n", UnreadableLog, "nothing but a header line"),
        ("loss\n", UnreadableLog, "nothing but a header line"),
        ("1,2.5\n2,2.4\n", UnreadableLog, "begins with numbers"),
        ("step,lr,loss\n1,2\n2,3\n", NoUsableLoss, "'loss' is a loss column, but no number"),
    ],
)
def test_what_is_refused(write: Write, text: str, error: type[LogError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_log(write(text))


def test_one_column_needs_the_suffix(write: Write) -> None:
    assert_reads(read_log(write("loss\n2.5\n2.4\n", "log.csv")), "loss=2.5 2.4", ...)
    with pytest.raises(UnreadableLog, match="no line has a number with a name"):
        read_log(write("loss\n2.5\n2.4\n", "log.txt"))


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"step,loss\n1,2\n", True),
        (b"\xef\xbb\xbfstep\tloss\n1\t2\n", True),
        (b"step,loss\n", True),
        (b"\n\nstep;loss\n;\n1;2\n", True),
        (b"step,loss\nabc,def\n", False),
        (b"1,2\n3,4\n", False),
        (b"step 1, loss 2.5\nstep 2, loss 2.4\n", False),
        (b"2026-01-01 10:00:00,123 INFO start\n2026-01-01 10:00:01,456 INFO go\n", False),
        (b"one word\n", False),
        (b"  \n", False),
    ],
)
def test_recognition(head: bytes, answer: bool) -> None:
    assert is_csv(head) is answer


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_very_long_cell_is_read_and_a_very_long_line_left_out(
    write: Write, monkeypatch: pytest.MonkeyPatch, quote: str
) -> None:
    path = write(f"step,loss,text\n1,2.5,x\n2,2.4,{quote}{'x' * 300_000}{quote}\n3,2.3,y\n")
    assert read_log(path).block.step.tolist() == [1, 2, 3]
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(log_file, "LINE_BYTES", 1 << 12)
    assert read_log(path).block.step.tolist() == [1, 3]


def test_short_rows_under_a_wide_header(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_log, "BATCH_CELLS", 50)
    header = ",".join(["step", "loss", *(f"metric {number}" for number in range(20))])
    wide = ",".join(["3", "2.3", *map(str, range(20))])
    reading = read_log(write(f"{header}\n1,2.5\n2,2.4\n{wide}\n4,2.2\n5,2.1\n6"))
    assert_reads(
        reading,
        "loss=2.5 2.4 2.3 2.2 2.1; metric 19=- - 19 - -",
        SHORT.replace("1 row has", "4 rows have"),
        CUT,
    )


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_decimal_commas(write: Write, delimiter: str, end: str) -> None:
    rows = [["Schritt", "Verlust"], ["1", "1.002,5"], ["2", "-2,25"], ["3", "1,5e-4"], ["4", "3"]]
    text = "\r\n".join(delimiter.join(row) for row in rows) + end
    block = read_log(write(text), loss="Verlust", step="Schritt").block
    assert block.step.tolist() == [1, 2, 3, 4]
    assert values(block, "loss") == [1002.5, -2.25, 1.5e-4, 3.0]


@pytest.mark.parametrize("epoch_length", [0, 20])
@pytest.mark.parametrize("counter", ["iter", "step"])
def test_steps_that_start_again_in_each_epoch_are_joined(
    write: Write, counter: str, epoch_length: int
) -> None:
    begun = [(epoch, place) for epoch in range(3) for place in range(20)]
    resumed = [(epoch, place) for epoch in (1, 2, 3) for place in range(20)]
    share = 1 / epoch_length if epoch_length else 0  # the epoch may count its fractions, too
    rows = [f"{epoch + share * place:.2f},{place},2.5" for epoch, place in begun + resumed]
    run = read_log(write("\n".join([f"epoch,{counter},loss", *rows]), "a.csv"))
    assert run.block.step.tolist() == [*range(60), *range(20, 80)]
    assert run.block.attempt.tolist() == [0] * 60 + [1] * 60
    assert "3 epochs are joined to the one before: the step count starts again." in run.notes
