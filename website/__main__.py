"""`python -m website`: build the docs site in `build/site`; warnings are errors."""

import shutil
import subprocess
import sys
from pathlib import Path

from website.stage import stage

ROOT = Path(__file__).parents[1]


def build() -> int:
    """Stage the pages and build the site; the exit code of Zensical."""
    for folder in (ROOT / "build" / "docs", ROOT / "build" / "site"):
        shutil.rmtree(folder, ignore_errors=True)
    stage(ROOT, ROOT / "build" / "docs")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(build())
