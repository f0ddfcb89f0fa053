"""`scripts/bench loops [findings | setups | soak [STEPS] | schedules [SEEDS]]`."""

import os
import sys

from benchmarks.loops.findings import Finding, read_findings
from benchmarks.loops.reports import TestResult, run_tests
from benchmarks.loops.setups import publish_setups
from benchmarks.results import publish, table

TITLE = "Live: other people's loops"
SEVERITIES = {
    "S1": "harms training or hangs",
    "S2": "wrong or missing record or decision",
    "S3": "annoying",
    "R": "from a review of the code",
}


def main(arguments: list[str]) -> None:
    """Run one of the commands."""
    command, *rest = arguments or ["findings"]
    if command == "findings":
        publish_findings()
    elif command == "setups":
        publish_setups()
    elif command == "soak":
        os.environ["SOAK_STEPS"] = rest[0] if rest else "100000"
        _run_and_exit("soak")
    elif command == "schedules":
        os.environ["SCHEDULE_SEEDS"] = rest[0] if rest else "200"
        _run_and_exit("ranks/schedules")
    else:
        sys.exit(__doc__)


def publish_findings() -> None:
    """Run the test of every finding; publish what is left."""
    findings = read_findings()
    names = list(dict.fromkeys(test for finding in findings for test in finding.tests))
    results = run_tests(names, "--timeout=300")
    rows = [_row(finding, results) for finding in findings]
    counts = []
    for severity, meaning in SEVERITIES.items():
        of_it = [row for row in rows if row[1] == severity]
        left = sum(row[-1] in ("left", "not run") for row in of_it)
        counts.append([severity, meaning, f"{left} of {len(of_it)}"])
    body = "\n\n".join(
        [
            "Findings of a red team on 0.1, each shown by tests of `tests/live/loops`, and five, "
            "about the gate's rule, by `tests/live/protect`. Left: a test fails. On 0.1 all 57 of "
            "the former were left.",
            table(["severity", "means", "left"], counts),
            table(["number", "severity", "what", "tests", "now"], rows),
        ]
    )
    publish(TITLE, "scripts/bench loops", body)


def _row(finding: Finding, results: list[TestResult]) -> list[object]:
    tests = ", ".join(f"`{test}`" for test in finding.tests)
    return [finding.number, finding.severity, finding.what, tests, _state(finding, results)]


def _state(finding: Finding, results: list[TestResult]) -> str:
    mine = [result for result in results if _belongs(result.name, finding.tests)]
    outcomes = {result.outcome for result in mine} - {"skipped"}
    if not outcomes:
        return "not run"
    return "fixed" if outcomes == {"passed"} else "left"


def _belongs(name: str, tests: tuple[str, ...]) -> bool:
    return name in tests or name.partition("[")[0] in tests


def _run_and_exit(*files: str) -> None:
    results = run_tests(files, "-s", "--timeout=0")
    failed = [result for result in results if result.outcome == "failed"]
    for result in results:
        print(result.name, result.outcome, result.properties or "", result.message[:300])
    sys.exit(1 if failed or not results else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
