from pathlib import Path

import numpy as np
import pytest
from tests.readers.shapes import Write, values

from trimtab.core.errors import NoUsableLoss, UnreadableLog
from trimtab.readers import csv_log, log_file, read_log
from trimtab.readers.csv_log import is_csv


def loss_of(path: Path) -> list[float | None]:
    return values(read_log(path).block, "loss")


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
    assert reading.block.step.tolist() == [1, 2]
    assert values(reading.block, "loss") == [2.5, 2.25]
    assert reading.notes == ()


def test_the_delimiter_is_the_one_that_makes_most_names(write: Write) -> None:
    path = write('step;"loss, total";a;b\n1;2.5;3;4\n')
    assert read_log(path).names["loss"] == "loss, total"


def test_quotes(write: Write) -> None:
    path = write('"step","loss","text"\n"1","2.5","a, ""b"""\n"2","",""\n3,1.5,x\n')
    assert loss_of(path) == [2.5, 1.5]


def test_a_quoted_cell_may_run_over_lines(write: Write) -> None:
    path = write('step,text,loss\n1,"one\n2,9.0,\n",2.5\n3,x,1.5\n')
    reading = read_log(path)
    assert reading.block.step.tolist() == [1, 3]
    assert values(reading.block, "loss") == [2.5, 1.5]


def test_a_quoted_cell_may_run_over_chunks(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 5)
    path = write('step,text,loss\n1,"one\ntwo\nthree",2.5\n3,x,1.5\n')
    assert loss_of(path) == [2.5, 1.5]


def test_a_quote_that_is_never_closed_costs_one_row(write: Write) -> None:
    rows = [f"{step},2.5,x" for step in range(200)]
    rows[20] = '20,"2.5,x'
    reading = read_log(write("step,loss,text\n" + "\n".join(rows) + "\n"))
    assert len(reading.block) == 199
    assert "Quotes that were never closed: 1." in reading.notes


def test_a_quote_left_open_at_the_end(write: Write) -> None:
    reading = read_log(write('step,loss,text\n1,2.5,x\n2,2.0,"x\n'))
    assert values(reading.block, "loss") == [2.5, 2.0]
    assert "Quotes that were never closed: 1." in reading.notes


def test_only_an_open_quote(write: Write) -> None:
    with pytest.raises(UnreadableLog, match="nothing but a header line"):
        read_log(write('"step,loss'))


def test_missing_and_not_finite_are_distinguished(write: Write) -> None:
    words = ["", "null", "None", "NA", "-", "n/a", "nan", "-inf", "Infinity", "1.#INF", "1.#QNAN"]
    path = write("step,loss\n0,1\n" + "".join(f"{n},{w}\n" for n, w in enumerate(words, start=1)))
    column = read_log(path).block.column("loss")
    assert column.present.all()
    np.testing.assert_array_equal(
        column.values, [1, np.nan, -np.inf, np.inf, np.inf, np.nan], strict=True
    )


def test_text_among_numbers_is_counted(write: Write) -> None:
    reading = read_log(write("step,loss,lr\n1,2.5,1\n2,oops,1\n3,1_0,1\n"))
    assert values(reading.block, "loss") == [2.5, None, None]
    assert reading.notes == (
        "Cells of 'loss' that are not numbers, treated as missing: 2 (the first is 'oops').",
    )


def test_columns_without_a_number_are_left_out(write: Write) -> None:
    reading = read_log(write("step,loss,run,empty\n1,2.5,a,\n2,2.4,b,\n"))
    assert list(reading.block.columns) == ["loss"]
    assert reading.notes == ("Columns without a number, left out: 'run'.",)


def test_ragged_rows(write: Write) -> None:
    reading = read_log(write("step,loss,lr\n1,2.5\n2,2.4,1,7,8\n3,2.3,1,\n4,2.2,1\n"))
    assert values(reading.block, "loss") == [2.5, 2.4, 2.3, 2.2]
    assert values(reading.block, "lr") == [None, 1, 1, 1]
    assert reading.notes == (
        "Rows with fewer cells than the header, the rest treated as missing: 1.",
        "Rows with more cells than the header, which were cut off: 1.",
    )


def test_a_cut_last_line_is_left_out(write: Write) -> None:
    reading = read_log(write("step,loss,lr\n100,2.5,1\n200,2.4,1\n30"))
    assert reading.block.step.tolist() == [100, 200]
    assert reading.block.attempt.tolist() == [0, 0]
    assert reading.notes == ("Last line cut off in the middle, left out: 1.",)


def test_a_whole_last_line_without_an_end_is_kept(write: Write) -> None:
    reading = read_log(write("step,loss\n100,2.5\n200,2.4"))
    assert reading.block.step.tolist() == [100, 200]
    assert reading.notes == ()


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_repeated_headers(write: Write, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    reading = read_log(write("step,loss\n1,2.5\n2,2.4\nstep,loss\n1,2.5\nstep,loss\n1,2.6\n"))
    assert values(reading.block, "loss") == [2.5, 2.4, 2.5, 2.6]
    assert reading.block.attempt.tolist() == [0, 0, 1, 1]
    assert "Header lines repeated among the rows, skipped: 2." in reading.notes


def test_a_header_that_changes_is_followed(write: Write) -> None:
    reading = read_log(write("step,loss,lr\n1,2.5,0.1\nstep,lr,loss,extra\n2,0.1,2.4,7\n"))
    assert values(reading.block, "loss") == [2.5, 2.4]
    assert values(reading.block, "lr") == [0.1, 0.1]
    assert values(reading.block, "extra") == [None, 7]
    assert (
        "Header lines among the rows that name other columns, used from there on: 1."
        in reading.notes
    )


def test_an_index_without_a_name(write: Write) -> None:
    reading = read_log(write(",step,loss\n0,1,2.5\n,2,2.4\n,step,loss\n2,3,2.3\n"))
    assert reading.block.step.tolist() == [1, 2, 3]
    assert values(reading.block, "column 1") == [0, None, 2]


def test_names_that_occur_twice(write: Write) -> None:
    reading = read_log(write("step,loss,loss,loss (2)\n1,2.5,3.5,4.5\n"))
    assert values(reading.block, "loss") == [2.5]
    assert values(reading.block, "loss (2)") == [3.5]
    assert values(reading.block, "loss (2) (2)") == [4.5]


def test_nul_bytes(write: Write) -> None:
    reading = read_log(write(b"step,loss\n1,2.5\n\0\0\0\0" + b"2,2.4\n" + b"\0" * 5000))
    assert values(reading.block, "loss") == [2.5, 2.4]
    assert reading.notes == ("NUL bytes left out, as a crash leaves them: 5004.",)


@pytest.mark.parametrize("quote", ["", '"'])
def test_very_long_cells(write: Write, quote: str) -> None:
    text = quote + "x" * 300_000 + quote
    reading = read_log(write(f"step,loss,text\n1,2.5,{text}\n2,2.4,y\n"))
    assert values(reading.block, "loss") == [2.5, 2.4]


def test_a_very_long_number(write: Write) -> None:
    assert loss_of(write(f"step,loss\n1,0.{'3' * 200_000}\n")) == [1 / 3]


def test_a_very_long_line_is_left_out(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(log_file, "LINE_BYTES", 1 << 12)
    reading = read_log(write(f"step,loss\n1,2.5\n2,{'7' * 10_000}\n3,2.3\n"))
    assert reading.block.step.tolist() == [1, 3]


def test_blank_lines_and_bytes_that_are_not_utf8(write: Write) -> None:
    reading = read_log(write(b"\n  \nstep,loss,caf\xe9\n\n1,2.5,3\n\t\n2,2.4,4\n"))
    assert values(reading.block, "caf\ufffd") == [3, 4]


def test_control_characters_in_names_do_not_act(write: Write) -> None:
    reading = read_log(write("step,loss,\x1b[31mred\n1,2.5,3\n"))
    assert "?[31mred" in reading.block.columns


@pytest.mark.parametrize("text", ["step,loss", "step,loss\n", "step,loss\nstep,loss\n", "loss\n"])
def test_a_header_alone(write: Write, text: str) -> None:
    with pytest.raises(UnreadableLog, match="nothing but a header line"):
        read_log(write(text))


def test_numbers_without_a_header(write: Write) -> None:
    with pytest.raises(UnreadableLog, match="begins with numbers"):
        read_log(write("1,2.5\n2,2.4\n"))


def test_one_column_needs_the_suffix(write: Write) -> None:
    assert loss_of(write("loss\n2.5\n2.4\n", "log.csv")) == [2.5, 2.4]
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


def test_memory_of_an_open_quote_is_bounded(write: Write) -> None:
    rows = "".join(f"{step},2.5\n" for step in range(csv_log.QUOTED_LINES * 3))
    reading = read_log(write(f'step,loss\n"\n{rows}'))
    assert len(reading.block) == csv_log.QUOTED_LINES * 3


def test_short_rows_under_a_wide_header(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_log, "BATCH_CELLS", 50)
    header = ",".join(["step", "loss", *(f"metric {number}" for number in range(20))])
    wide = ",".join(["3", "2.3", *map(str, range(20))])
    reading = read_log(write(f"{header}\n1,2.5\n2,2.4\n{wide}\n4,2.2\n5,2.1\n6"))
    assert values(reading.block, "loss") == [2.5, 2.4, 2.3, 2.2, 2.1]
    assert values(reading.block, "metric 19") == [None, None, 19, None, None]
    assert reading.notes == (
        "Rows with fewer cells than the header, the rest treated as missing: 4.",
        "Last line cut off in the middle, left out: 1.",
    )


def test_a_column_that_no_row_reaches_is_still_known(write: Write) -> None:
    with pytest.raises(NoUsableLoss, match="'loss' is a loss column, but no number"):
        read_log(write("step,lr,loss\n1,2\n2,3\n"))


@pytest.mark.parametrize("delimiter", [";", "\t"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_decimal_commas(write: Write, delimiter: str, end: str) -> None:
    rows = [["Schritt", "Verlust"], ["1", "1.002,5"], ["2", "-2,25"], ["3", "1,5e-4"], ["4", "3"]]
    text = "\r\n".join(delimiter.join(row) for row in rows) + end
    block = read_log(write(text), loss="Verlust", step="Schritt").block
    assert block.step.tolist() == [1, 2, 3, 4]
    assert values(block, "loss") == [1002.5, -2.25, 1.5e-4, 3.0]


@pytest.mark.parametrize("cell", ["2.5", '"2,5"', " 2,5 ", "+2,5"])
def test_one_cell_with_a_decimal_comma(write: Write, cell: str) -> None:
    assert values(read_log(write(f"step;loss;a, b\n1;{cell};x, 3,4 y\n")).block, "loss") == [2.5]


def test_what_looks_like_a_decimal_comma_but_is_not(write: Write) -> None:
    reading = read_log(write("step;loss;betas\n1;2.5;0.9,0.95\n2;2.25;[1,2]\n"))
    assert reading.block.columns.keys() == {"loss"}


def test_the_last_line_counts_without_a_line_end_if_it_is_whole(write: Write) -> None:
    assert len(read_log(write('"step","loss"\n"1","2.5"\n"2","2.25"')).block) == 2
    assert len(read_log(write("step,loss\n1,2.5\n2")).block) == 1
