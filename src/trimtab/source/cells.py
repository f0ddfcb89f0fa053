"""One column of any package as numbers: a list, an array, a tensor, a column of a frame."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from inspect import getattr_static
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import BoolArray, FloatArray
from trimtab.core.errors import UnreadableLog

_MISSING = frozenset({"NAType", "NaTType", "MaskedConstant"})
"""Types of what pandas and numpy write where a value is missing."""

_AMBIGUOUS = frozenset({"CategoricalDtype", "SparseDtype"})
"""Types of columns of pandas in which NaN is what is missing."""

_ABSENT = object()

_NUMERIC = "iuf"
_WORDS = "OSUT"
"""Kinds of numpy arrays whose elements have to be looked at one by one."""


def has(thing: object, *names: str) -> bool:
    """Return whether an object really has these attributes, not only answers to any name."""
    return all(getattr_static(thing, name, _ABSENT) is not _ABSENT for name in names)


@dataclass(slots=True, kw_only=True)
class Cells:
    """The cells of one column."""

    values: FloatArray | list[Any]
    """Numbers, or cells to be parsed as those of a log are."""
    present: BoolArray
    """Where there is a value, NaN included."""
    can_be_missing: bool = True
    """False if the column has no way to say that a value is missing, other than NaN."""

    @property
    def filled(self) -> BoolArray:
        """True where there is a value that is not NaN."""
        if isinstance(self.values, list):
            return self.present
        return self.present & ~np.isnan(self.values)


def read_cells(column: Any) -> Cells:
    """Return the cells of a column; raises UnreadableLog for what is none."""
    if isinstance(column, np.ndarray):
        return _from_array(column)
    if is_tensor(column):
        return _from_array(to_array(column))
    if has(column, "isna", "dtype"):
        return _from_pandas(column)
    if has(column, "is_null"):  # polars and pyarrow
        return _from_array(np.asarray(column), missing=np.asarray(column.is_null(), dtype=np.bool_))
    if has(column, "__array__"):
        return _from_array(np.asarray(column))
    if isinstance(column, Sequence) and not isinstance(column, str | bytes):
        return _from_list(list(column))
    raise UnreadableLog(f"a column has to be a list or an array, not {described(column)}")


def is_series(thing: object) -> bool:
    """Return whether this is a column of pandas, polars or pyarrow."""
    return has(thing, "to_numpy") and not has(thing, "columns") and _knows_missing(thing)


def _knows_missing(thing: object) -> bool:
    return has(thing, "isna", "dtype") or has(thing, "is_null")


def is_tensor(thing: object) -> bool:
    """Return whether this is a tensor of torch, on any device."""
    return has(thing, "detach", "cpu", "is_floating_point")


def to_array(tensor: Any) -> NDArray[Any]:
    """Return the numbers of a tensor; numpy has no bfloat16, so floats become float64."""
    local = tensor.detach().cpu()
    return np.asarray((local.double() if local.is_floating_point() else local).numpy())


def plain_cell(value: Any) -> Any:
    """Return a float, a text or None for a value of any package; else the value as it is."""
    if value is None or isinstance(value, float | str | bool):
        return value
    if isinstance(value, int):
        return _to_float(value)
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Decimal | Fraction):
        return _to_float(value)
    if hasattr(type(value), "item"):
        try:
            return plain_cell(value.item())
        except (TypeError, ValueError, RuntimeError):  # of more than one element
            return value
    return value


def _to_float(value: int | Decimal | Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def described(thing: object) -> str:
    """Return what a sentence calls a thing: its type."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return "None" if thing is None else f"an object of type {type(thing).__name__}"


def _from_pandas(column: Any) -> Cells:
    kind = getattr(column.dtype, "kind", "O")
    if isinstance(column.dtype, np.dtype):
        return _from_array(column.to_numpy())
    missing = np.asarray(column.isna(), dtype=np.bool_)
    if type(column.dtype).__name__ in _AMBIGUOUS:
        return _from_array(np.asarray(column))
    if kind in _NUMERIC:
        values = np.asarray(column.to_numpy(dtype="float64", na_value=np.nan))
        return Cells(values=values, present=~missing)
    if kind not in _WORDS:
        return _without_numbers(column.iloc, ~missing)
    return _from_array(np.asarray(column.to_numpy()), missing=missing)


def _from_array(array: NDArray[Any], missing: BoolArray | None = None) -> Cells:
    """Return the cells of an array; without `missing`, its floats cannot say that one is."""
    if array.ndim != 1:
        raise UnreadableLog(f"a column has one dimension, and this has the shape {array.shape}")
    kind = array.dtype.kind
    if isinstance(array, np.ma.MaskedArray):
        missing, array = np.ma.getmaskarray(array), array.data
    present = np.ones(len(array), dtype=np.bool_) if missing is None else ~missing
    if kind in _NUMERIC:
        values = array.astype(np.float64)
        return Cells(values=values, present=present, can_be_missing=missing is not None)
    if kind in _WORDS:
        cells = _from_list(array.tolist())
        return Cells(values=cells.values, present=cells.present & present)
    return _without_numbers(array, present)


def _without_numbers(column: Any, present: BoolArray) -> Cells:
    """Return cells for times, truth values and the like: one as text, for a message to name it."""
    texts: list[Any] = [None] * len(present)
    for place in np.flatnonzero(present)[:1]:
        texts[place] = str(column[place])
    return Cells(values=texts, present=present)


def _from_list(column: list[Any]) -> Cells:
    cells = [cell if type(cell) is float else plain_cell(cell) for cell in column]
    present = np.fromiter((cell is not None for cell in cells), np.bool_, len(cells))
    if set(map(type, cells)) == {float}:  # as pandas makes lists: it has no None in them
        return Cells(values=np.array(cells), present=present, can_be_missing=False)
    return Cells(values=cells, present=present)
