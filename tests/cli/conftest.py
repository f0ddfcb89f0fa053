"""What tests of commands share."""

from pathlib import Path

import pytest

from trimtab.cli import progress

# On a busy machine two seconds pass in a test that expects nothing on standard error.
progress.QUIET_SECONDS = 600.0


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the lab's tokenized text, which is made once for all tests."""
    return tmp_path_factory.mktemp("cache")
