from pathlib import Path

import pytest

from trimtab.journal import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)
