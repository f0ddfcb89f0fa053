"""Damaged inputs: nothing but an error of ours comes out of any reader.

`inputs` has a small input for every kind of outcome that `scripts/bench fuzz_readers --keep` has
seen, among them all that once raised something else.
"""

import logging
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")  # the state of a judge is read by a live run
pytest.importorskip("pyarrow")
pytest.importorskip("yaml")

from tests.kit.fuzz.damage import damage
from tests.kit.fuzz.session import INPUTS, Tally, file_name, kept, try_one
from tests.kit.fuzz.targets import Target, all_targets

FRESH = 12
"""New inputs for each target; the benchmark reads a million."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return all_targets(tmp_path_factory.mktemp("seeds"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    logging.disable(logging.NOTSET)


def test_inputs_that_were_kept(targets: list[Target], tmp_path: Path) -> None:
    known = {file_name(target.name) for target in targets}
    assert {file.name for file in INPUTS.iterdir()} <= known
    failures = []
    for target in targets:
        tally = Tally()
        for data in kept(INPUTS, target.name):
            try_one(target, data, tmp_path / file_name(target.name), tally)
        failures += tally.failures
    assert not failures


def test_fresh_ones(targets: list[Target], tmp_path: Path) -> None:
    rng = random.Random(7)
    failures = []
    for target in targets:
        tally = Tally()
        for _ in range(FRESH):
            data = damage(rng.choice(target.seeds), target.seeds, rng)
            try_one(target, data, tmp_path / file_name(target.name), tally)
        failures += tally.failures
    assert not failures
