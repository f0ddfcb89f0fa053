"""The example with a DeepSpeed engine, on a processor."""

import importlib.util
import runpy
from pathlib import Path

import pytest
from tests.kit.deepspeed_engines import prepare
from tests.kit.launch import run_ranks
from tests.kit.tiny import journal_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed: pip install --group deepspeed",
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "deepspeed_engine.py"


def run_the_example(rank: int, folder: Path) -> None:
    import os

    prepare()
    os.chdir(folder)
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_every_step_is_recorded(tmp_path: Path) -> None:
    run_ranks(run_the_example, 1, tmp_path, deadline=120)
    losses = journal_of(tmp_path / "runs" / "deepspeed").column("loss")
    assert len(losses.values) == 40
    assert losses.finite.all()
