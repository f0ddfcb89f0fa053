"""One run in every form that a user may have it in: its records are those of its CSV file."""

import io
import json
import math
import tempfile
from array import array
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.source import read_run

Row = dict[str, float | None]
NAN, INF = math.nan, math.inf
NAMES = ("step", "loss", "grad_norm", "lr", "eval_loss")


def record(step: int) -> Row:
    noise = 0.02 * math.sin(37.0 * step)
    loss: float | None = 2.0 + 3.0 * math.exp(-step / 60) + noise
    loss = {300: 9.0, 301: 7.5, 340: NAN, 350: INF, 355: -INF, 360: None}.get(step, loss)
    norm = 40.0 if step == 300 else 1.0 + noise
    return {"step": float(step), "loss": loss, "grad_norm": norm, "lr": 3e-4, "eval_loss": None}


def rows() -> list[Row]:
    """A spike, NaN, both infinities, a loss that is missing, evaluations in rows of their own."""
    found: list[Row] = []
    for step in range(400):
        found.append(record(step))
        if step % 50 == 49:
            others = dict.fromkeys(("loss", "grad_norm", "lr"))
            found.append({"step": float(step), **others, "eval_loss": 2.5 + 1 / (step + 1)})
    return found


ROWS = rows()
COLUMNS: dict[str, list[float | None]] = {name: [row[name] for row in ROWS] for name in NAMES}
LOSSES = [row["loss"] for row in ROWS if row["eval_loss"] is None]


def as_csv(columns: dict[str, list[float | None]]) -> str:
    lines = [",".join(columns)]
    for cells in zip(*columns.values(), strict=True):
        lines.append(",".join("" if cell is None else repr(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def told(given: Any) -> dict[str, Any]:
    """The records that are judged, each number bit by bit."""
    block = read_run(given).block
    found = {"step": block.step.tolist(), "attempt": block.attempt.tolist()}
    for name, column in block.columns.items():
        cells = zip(column.values.tolist(), column.present.tolist(), strict=True)
        found[name] = [repr(value) if present else None for value, present in cells]
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return of_file(as_csv(COLUMNS))


@cache
def of_file(text: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        path.write_text(text, encoding="utf-8")
        return told(path)


def without_none(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if value is not None}


def masked(name: str) -> Any:
    values = [0.0 if value is None else value for value in COLUMNS[name]]
    return np.ma.MaskedArray(values, mask=[value is None for value in COLUMNS[name]])


def text_file() -> Any:
    file = io.StringIO("a line before it\n" + as_csv(COLUMNS))
    file.readline()
    return file


def arrow() -> Any:
    return pytest.importorskip("pyarrow").table(COLUMNS)


def polars() -> Any:
    # Not every element of the column is a float; it is to be one of floats all the same.
    return pytest.importorskip("polars").DataFrame(COLUMNS, strict=False)


def pandas_arrow() -> Any:
    pandas = pytest.importorskip("pandas")
    return arrow().to_pandas(types_mapper=pandas.ArrowDtype)


def pandas_masked() -> Any:
    pandas = pytest.importorskip("pandas")
    floating = pandas.arrays.FloatingArray
    return pandas.DataFrame(
        {name: floating(masked(name).data, masked(name).mask) for name in NAMES}
    )


def pandas_objects() -> Any:
    return pytest.importorskip("pandas").DataFrame(COLUMNS, dtype=object)


def read_as_run() -> Any:
    return read_run(as_csv(COLUMNS))


EXACT: dict[str, Callable[[], Any]] = {
    "text": lambda: as_csv(COLUMNS),
    "text with the line ends of Windows": lambda: as_csv(COLUMNS).replace("\n", "\r\n"),
    "bytes": lambda: as_csv(COLUMNS).encode(),
    "bytearray": lambda: bytearray(as_csv(COLUMNS).encode()),
    "JSON lines": lambda: "".join(json.dumps(row) + "\n" for row in ROWS),
    "JSON in one line": lambda: json.dumps(ROWS),
    "text file": text_file,
    "binary file": lambda: io.BytesIO(as_csv(COLUMNS).encode()),
    "dict of lists": lambda: COLUMNS,
    "dict of tuples": lambda: {name: tuple(cells) for name, cells in COLUMNS.items()},
    "dict of deques": lambda: {name: deque(cells) for name, cells in COLUMNS.items()},
    "dict of words": lambda: {n: [str(c) for c in cells] for n, cells in COLUMNS.items()},
    "dict of decimals": lambda: {
        n: [None if c is None else Decimal(c) for c in cells] for n, cells in COLUMNS.items()
    },
    "dict of masked arrays": lambda: {name: masked(name) for name in NAMES},
    "dict of object arrays": lambda: {n: np.array(c, dtype=object) for n, c in COLUMNS.items()},
    "dict of dicts": lambda: {n: dict(enumerate(cells)) for n, cells in COLUMNS.items()},
    "list of dicts": lambda: ROWS,
    "list of dicts without None": lambda: [without_none(row) for row in ROWS],
    "tuple of dicts": lambda: tuple(ROWS),
    "pyarrow table": arrow,
    "pyarrow batch": lambda: arrow().to_batches()[0],
    "pyarrow reader": lambda: arrow().to_reader(),
    "polars": polars,
    "dict of polars columns": lambda: {name: polars()[name] for name in NAMES},
    "dict of pyarrow columns": lambda: {name: arrow()[name] for name in NAMES},
    "pandas, columns of Arrow": pandas_arrow,
    "pandas, nullable": pandas_masked,
    "pandas, objects": pandas_objects,
    "a run": read_as_run,
    "a block": lambda: read_as_run().block,
}
"""Forms that can say that a value is missing."""


@pytest.mark.parametrize("form", EXACT)
def test_a_form_is_read_as_its_csv_file(form: str, expected: dict[str, Any]) -> None:
    assert told(EXACT[form]()) == expected


PADDED = {name: [NAN if cell is None else cell for cell in COLUMNS[name]] for name in NAMES}


def pandas_floats() -> Any:
    return pytest.importorskip("pandas").DataFrame(PADDED)


def pandas_from_csv() -> Any:
    return pytest.importorskip("pandas").read_csv(io.StringIO(as_csv(COLUMNS)))


FLOATS: dict[str, Callable[[], Any]] = {
    "dict of arrays": lambda: {name: np.array(cells) for name, cells in PADDED.items()},
    "pandas": pandas_floats,
    "pandas, from a CSV file": pandas_from_csv,
    "pandas, the step as index": lambda: pandas_floats().set_index("step"),
    "dict of pandas columns": lambda: dict(pandas_floats().items()),
    "structured array": lambda: pandas_floats().to_records(index=False),
    "dict of tensors": lambda: {
        n: pytest.importorskip("torch").tensor(c, dtype=float) for n, c in PADDED.items()
    },
}
"""Forms in which a value that is missing is NaN."""


@pytest.mark.parametrize("form", FLOATS)
def test_nan_that_fills_up_a_row_is_missing(form: str) -> None:
    loss = [
        NAN if cell is None and row["grad_norm"] is not None else cell
        for cell, row in zip(COLUMNS["loss"], ROWS, strict=True)
    ]
    assert told(FLOATS[form]()) == of_file(as_csv({**COLUMNS, "loss": loss}))


def losses_as(form: str) -> Any:
    match form:
        case "list":
            return LOSSES
        case "tuple":
            return tuple(LOSSES)
        case "pandas":
            return pytest.importorskip("pandas").Series(LOSSES, dtype=object)
        case "polars":
            return pytest.importorskip("polars").Series("loss", LOSSES)
        case "pyarrow":
            return pytest.importorskip("pyarrow").array(LOSSES)
        case "numbers of numpy":
            return [None if loss is None else np.float64(loss) for loss in LOSSES]
    torch = pytest.importorskip("torch")
    return [None if x is None else torch.tensor(x, dtype=float).requires_grad_() for x in LOSSES]


@pytest.mark.parametrize(
    "form", ["list", "tuple", "pandas", "polars", "pyarrow", "numbers of numpy", "tensors"]
)
def test_losses_alone_are_numbered(form: str) -> None:
    numbered: dict[str, list[float | None]] = {"step": [float(n) for n in range(400)]}
    assert told(losses_as(form)) == of_file(as_csv({**numbered, "loss": LOSSES}))


def test_losses_in_an_array_keep_their_nan() -> None:
    losses = np.array([NAN if loss is None else loss for loss in LOSSES])
    for given in (losses, array("d", losses), losses.astype(np.float32)):
        loss = read_run(given).block.column("loss")
        np.testing.assert_allclose(loss.values, losses, rtol=1e-6)
        assert loss.present.all()
    tensor = pytest.importorskip("torch").tensor(losses, requires_grad=True)
    assert np.array_equal(read_run(tensor).block.column("loss").values, losses, equal_nan=True)
    half = tensor.bfloat16()  # numpy has no such numbers
    assert read_run(half).block.column("loss").values[0] == half[0].item()
    assert len(read_run(tensor[0]).block) == len(read_run(np.float32(2.5)).block) == 1


def test_nan_inf_and_missing_are_four_things() -> None:
    loss = read_run(COLUMNS).block.column("loss")
    steps = np.array([row["step"] for row in ROWS])
    at = {step: int(np.flatnonzero(steps == step)[0]) for step in (340, 350, 355, 360)}
    assert np.isnan(loss.values[at[340]])
    assert loss.present[at[340]]
    assert (loss.values[at[350]], loss.values[at[355]]) == (INF, -INF)
    assert not loss.present[at[360]]
