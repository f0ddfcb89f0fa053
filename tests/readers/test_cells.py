"""Cells as numbers: one by one, as a column, and the fast way of numpy, which must say the same."""

import math
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples

from trimtab.core.errors import LogError
from trimtab.readers import csv_log, log_file, read_log
from trimtab.readers.cells import parse_number, to_matrix, to_numbers


@pytest.mark.parametrize(
    ("texts", "number"),
    [
        (["nan", "NaN", "NAN", "-nan", "1.#QNAN", "-1.#IND", "nan(ind)"], math.nan),
        (["inf", "Inf", "+INF", "Infinity", "1.#INF", "1.#INF00", "1e999"], math.inf),
        (["-inf", "-Infinity", "-1.#INF"], -math.inf),
        ([" 1.5 ", "1.5e0", "+1.5"], 1.5),
        ([".5"], 0.5),
        (["-0.0"], -0.0),
    ],
)
def test_numbers(texts: list[str], number: float) -> None:
    assert {repr(parse_number(text)) for text in texts} == {repr(number)}


@pytest.mark.parametrize("text", ["", " ", "null", "None", "NULL", "NA", "n/a", "N/A", "-"])
def test_missing(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize("cell", ["abc", "1,5", "1_000", "0x10", "1.2.3", True, False, [1.0], {}])
def test_everything_else_is_no_number(cell: object) -> None:
    with pytest.raises(ValueError):
        parse_number(cell)


@pytest.mark.parametrize(
    ("column", "numbers", "present", "texts"),
    [
        (["1", "2.5", "nan"], [1, 2.5, math.nan], None, (0, "")),
        ([1.0, math.inf], [1, math.inf], None, (0, "")),
        (["1", "", "3"], [1, 3], [True, False, True], (0, "")),
        (["1", "null", "oops", "1_0"], [1], [True, False, False, False], (2, "oops")),
        ([1.0, None, "2", True, [1.0]], [1, 2], [True, False, True, False, False], (2, "bool")),
    ],
)
def test_columns(
    column: list[object], numbers: list[float], present: list[bool] | None, texts: tuple[int, str]
) -> None:
    found = to_numbers(column)
    np.testing.assert_array_equal(found.values, numbers)
    assert (None if found.present is None else found.present.tolist()) == present
    assert (found.num_texts, found.first_text) == texts


# The fast way

HEADER_BYTES = len("step,loss,lr\n")
"""The lines that come together with the header always take the careful way."""

ODD = [
    *("", " ", "-", "null", "None", "n/a", "nan", "NaN", "-nan", "inf", "-Infinity", "1e999"),
    *("1.#INF", "-1.#IND", "nan(ind)", "1_0", "0x10", "1e", "1.5x", "--1", "1 2", "(1)", "1d5"),
    *("\u0661", "1\u2028", "\x1c1", "1\x85", "1\ufffd", "1\0", "#1", '"1.5"', '"', '"1,5"', "true"),
    *("9" * 400, "-" + "9" * 30, "0." + "3" * 700, "1e-400", "4.9e-324", "-0", "+7", ".5", "5."),
]

plain = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map("{:.7g}".format),
    st.integers(-(10**25), 10**25).map(str),
)
cells = plain | st.sampled_from(ODD)
plain_rows = st.lists(st.lists(plain, min_size=3, max_size=3), min_size=1, max_size=20)
odd_lines = st.one_of(
    st.lists(cells, min_size=3, max_size=3).map(",".join),
    st.lists(cells, max_size=5).map(",".join),
    st.sampled_from(["", "  ", "step,loss,lr", "step,lr,loss,more", "\ufeffstep,loss,lr"]),
)


@st.composite
def logs(draw: st.DrawFn) -> str:
    """CSV text: plain rows, with up to three odd lines among them."""
    body = [",".join(row) for row in draw(plain_rows)]
    for line in draw(st.lists(odd_lines, max_size=3)):
        body.insert(draw(st.integers(0, len(body))), line)
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    mark, last = draw(st.sampled_from(["", "\ufeff"])), draw(st.sampled_from([end, ""]))
    return mark + end.join(["step,loss,lr", *body]) + last


def all_of(path: Path) -> str:
    """Everything that is read from a log, or why nothing is."""
    try:
        run = read_log(path, format="csv")
    except LogError as error:
        return repr(error)
    axes = [run.block.step, run.block.tick, run.block.attempt, run.block.data_position]
    columns = [
        (name, column.values.tolist(), column.present.tolist())
        for name, column in run.block.columns.items()
    ]
    return repr((run.notes, run.names, run.block.qualities, [a.tolist() for a in axes], columns))


@settings(max_examples=examples(200), deadline=None)
@given(logs(), st.sampled_from([HEADER_BYTES, 100]))
@example("step,loss,lr\n1,2.5\n2,2.4\n", HEADER_BYTES)
@example("step,loss,lr\n1,2,3,4\n2,3,4,5\n", HEADER_BYTES)
@example("step,loss,lr\n1,2,3,\n2,3,4,\n", HEADER_BYTES)
@example("step,loss,lr\n1,nan,inf\n2,-inf,NaN\n", HEADER_BYTES)
@example("step,loss,lr\n" + 40 * "\n" + "1,2,3\n", HEADER_BYTES)
@example('step,loss,lr\n1,2,"3\n' + 5 * "2,3,4\n" + '5"\n3,4,5', HEADER_BYTES)
def test_both_ways_read_the_same(text: str, block_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        path.write_bytes(text.encode())
        with mock.patch.object(log_file, "BLOCK_BYTES", block_bytes):
            fast = all_of(path)
            with mock.patch.object(csv_log, "to_matrix", return_value=None):
                assert all_of(path) == fast


@settings(max_examples=examples(500), deadline=None)
@given(cells | st.text(alphabet="0123456789.+-eE_naifINF \t\x85\u0661", min_size=1, max_size=6))
def test_what_the_fast_way_takes_is_what_the_cell_says(cell: str) -> None:
    matrix = to_matrix(["1.5,2", f"1.5,{cell}"], ",")
    if matrix is not None:
        assert matrix[1].tobytes() == np.array([1.5, parse_number(cell)]).tobytes()


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_plain_numbers_take_the_fast_way(delimiter: str) -> None:
    matrix = to_matrix([delimiter.join(row) for row in (["1", "2.5"], ["2", "nan"])], delimiter)
    np.testing.assert_array_equal(matrix, [[1, 2.5], [2, np.nan]], strict=True)
