"""Running tests, and reading what pytest writes about them."""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "tests/live/loops"


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """What came of one test."""

    __test__ = False  # not a test itself

    name: str
    """`file::test[parameters]`, without `test_` and `.py`."""
    outcome: str
    """passed, failed, known failure or skipped."""
    message: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    """What the test recorded about itself."""


def run_tests(names: Sequence[str], *options: str) -> list[TestResult]:
    """Run these tests of tests/live/loops (files, or files with tests) and read the report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        command += ["-o", "junit_family=xunit1"]  # the newer one has no place for properties
        targets = [f"{FOLDER}/{_path(name)}" for name in names]
        subprocess.run(
            [*command, f"--junitxml={report}", *targets],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        return read_report(report)


def _path(name: str) -> str:
    """`clipping::a_test` as pytest wants it."""
    file, separator, test = name.partition("::")
    path = Path(file)
    return f"{path.parent / f'test_{path.name}.py'}" + (f"::test_{test}" if separator else "")


def _file(module: str) -> str:
    """`ranks/leaving` for `tests.live.loops.ranks.test_leaving`."""
    path = module.removeprefix("tests.live.").replace(".", "/").replace("test_", "", 1)
    return path.removeprefix("loops/") if path.startswith("loops/") else f"../{path}"


def read_report(report: Path) -> list[TestResult]:
    """The results in a JUnit report."""
    results = []
    for case in ET.parse(report).iter("testcase"):
        file = _file(case.get("classname", ""))
        test = case.get("name", "").removeprefix("test_")
        outcome, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome, message = "failed", child.get("message", "")
            elif child.tag == "skipped":
                is_known = child.get("type") == "pytest.xfail"
                outcome = "known failure" if is_known else "skipped"
                message = child.get("message", "")
        properties = {
            entry.get("name", ""): entry.get("value", "") for entry in case.iter("property")
        }
        results.append(
            TestResult(
                name=f"{file}::{test}", outcome=outcome, message=message, properties=properties
            )
        )
    return results
