"""The site as `scripts/docs` has built it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site() -> Path:
    built = ROOT / "build" / "site"
    if not (built / "index.html").exists():
        pytest.skip("the site is not built; scripts/docs builds it")
    return built
