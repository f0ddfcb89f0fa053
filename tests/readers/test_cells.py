import math

import numpy as np
import pytest

from trimtab.readers.cells import parse_number, to_numbers


@pytest.mark.parametrize("text", ["", " ", "null", "None", "NULL", "NA", "n/a", "N/A", "-"])
def test_missing(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["nan", "NaN", "NAN", "-nan", "1.#QNAN", "-1.#IND", "nan(ind)"])
def test_nan(text: str) -> None:
    value = parse_number(text)
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize("text", ["inf", "Inf", "+INF", "Infinity", "1.#INF", "1.#INF00", "1e999"])
def test_infinity(text: str) -> None:
    assert parse_number(text) == math.inf


@pytest.mark.parametrize("text", ["-inf", "-Infinity", "-1.#INF"])
def test_minus_infinity(text: str) -> None:
    assert parse_number(text) == -math.inf


@pytest.mark.parametrize(
    ("text", "value"), [(" 1.5 ", 1.5), ("1e-3", 1e-3), ("+7", 7.0), (".5", 0.5), ("-0.0", -0.0)]
)
def test_numbers(text: str, value: float) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("cell", ["abc", "1,5", "1_000", "0x10", "1.2.3", True, False, [1.0], {}])
def test_everything_else_is_no_number(cell: object) -> None:
    with pytest.raises(ValueError):
        parse_number(cell)


def test_a_column_of_numbers() -> None:
    numbers = to_numbers(["1", "2.5", "nan"])
    assert numbers.present is None
    np.testing.assert_array_equal(numbers.values, [1, 2.5, np.nan])


def test_a_column_with_gaps() -> None:
    numbers = to_numbers(["1", "", "3"])
    np.testing.assert_array_equal(numbers.present, [True, False, True])
    np.testing.assert_array_equal(numbers.values, [1, 3])


def test_a_column_with_words() -> None:
    numbers = to_numbers(["1", "null", "oops", "1_0", "3"])
    np.testing.assert_array_equal(numbers.present, [True, False, False, False, True])
    np.testing.assert_array_equal(numbers.values, [1, 3])
    assert (numbers.num_texts, numbers.first_text) == (2, "oops")


def test_an_underscore_never_makes_a_number() -> None:
    numbers = to_numbers(["1_0", "2"])
    np.testing.assert_array_equal(numbers.values, [2])


def test_floats_pass_as_they_are() -> None:
    numbers = to_numbers([1.0, math.inf])
    assert numbers.present is None
    np.testing.assert_array_equal(numbers.values, [1, np.inf])


def test_mixed_cells() -> None:
    numbers = to_numbers([1.0, None, "NaN", True, [1.0]])
    np.testing.assert_array_equal(numbers.present, [True, False, True, False, False])
    assert (numbers.num_texts, numbers.first_text) == (2, "bool")
