"""Which of many cases CI runs: every value of each kind once."""

from itertools import product

from tests.kit.cases import one_of_each


def test_one_of_each_keeps_every_value_of_a_product_once_and_marks_the_others_slow() -> None:
    kept = [case.values for case in one_of_each(product("abc", (1, 2))) if not case.marks]
    assert kept == [("a", 1), ("b", 2), ("c", 1)]


def test_one_of_each_by_kinds_of_its_own() -> None:
    cases = one_of_each(range(6), lambda number: (number % 2,))
    assert [case.values[0] for case in cases if not case.marks] == [0, 1]
    assert [case.values[0] for case in cases] == [0, 1, 2, 3, 4, 5]
