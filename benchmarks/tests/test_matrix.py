"""The cases of the support matrix can be tried."""

from pathlib import Path

from benchmarks.matrix.cases import CASES

ROOT = Path(__file__).parents[2]


def test_the_tests_of_every_case_exist() -> None:
    named = {path for case in CASES for path in case.tests if path.startswith("tests/")}
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]
