"""`scripts/audit`: what pip-audit prints, and when that is no audit at all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "audit"
HOLE = {"id": "CVE-1", "fix_versions": ["2"]}


def package(**facts: Any) -> str:
    return json.dumps({"dependencies": [{"name": "x", "version": "1", **facts}]})


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        ("", 0, "skipped, it cannot reach its database"),
        ("no JSON", 0, "skipped"),
        (package(skip_reason="not found on PyPI"), 0, "skipped"),
        (package(vulns=[]), 0, "no known vulnerabilities in 1 packages"),
        (package(vulns=[HOLE]), 1, "x 1: CVE-1"),
    ],
)
def test_only_a_real_audit_counts(printed: str, code: int, said: str) -> None:
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, input=printed, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout) == (code, True), done
    assert len(done.stdout.splitlines()) == 1
