"""SIGKILL at random moments: a relaunched run starts from a verified state and loses no data."""

from pathlib import Path

import pytest
from tests.kit.cases import some_of
from tests.kit.killed_runs import LAYOUTS, survive_kills


@pytest.mark.parametrize("name", some_of(["ddp", "recover"], "recover"))
def test_a_few_kills(tmp_path: Path, name: str) -> None:
    survive_kills(tmp_path, LAYOUTS[name], kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_hundred_kills(tmp_path: Path, name: str) -> None:
    survive_kills(tmp_path, LAYOUTS[name], kills=100, seed=2)
