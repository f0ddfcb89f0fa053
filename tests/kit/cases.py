"""Cases of a parametrised test: those that CI runs, and those that are left to `--all`."""

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

RUNS_ALL = "TRIMTAB_TEST_ALL" in os.environ
"""Whether `scripts/test --all` runs the tests."""


def one_of_each(
    cases: Iterable[T], values: Callable[[T], Sequence[Hashable]] | None = None
) -> list[Any]:
    """Return the cases as parameters of a test, marked slow but for one of each kind.

    The kinds of a case are its values, by place: of a product of optimizers and schedulers, CI runs
    as few cases as have every optimizer and every scheduler once. A case that is no tuple has one
    kind, that of itself; `values` gives a case others, such as `lambda seed: (seed % 3,)`.
    """
    chosen = list(cases)
    kinds = [
        set(enumerate(values(case) if values else case if isinstance(case, tuple) else (case,)))
        for case in chosen
    ]
    missing = set[tuple[int, Hashable]]().union(*kinds)
    kept: set[int] = set()
    while missing:
        # The first of those with the most new values: a diagonal, where all are combined.
        best = max(range(len(chosen)), key=lambda number: len(kinds[number] & missing))
        kept.add(best)
        missing -= kinds[best]
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if number in kept else pytest.mark.slow,
        )
        for number, case in enumerate(chosen)
    ]


def some_of(cases: Iterable[T], *kept: T) -> list[Any]:
    """Return the cases as parameters of a test, marked slow but for those that are kept."""
    return one_of_each(cases, lambda case: (case,) if case in kept else ())


def examples(count: int) -> int:
    """Return how many examples a property test draws: all of them with `--all`, a tenth in CI."""
    return count if RUNS_ALL else -(-count // 10)
