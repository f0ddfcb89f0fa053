from pathlib import Path

import pytest
from tests.readers.shapes import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a log and get its path."""

    def write(content: str | bytes, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
