"""The support matrix: `scripts/bench matrix FOLDER [--only TEXT...] [--again]`.

Every case gets a new virtual environment with the wheel of this checkout. Outcomes are kept in
FOLDER: a matrix that was interrupted continues, and --again repeats the cases that failed. Needs a
package index.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.matrix.attempt import ROOT, attempt
from benchmarks.matrix.cases import CASES, Case
from benchmarks.result_cache import Outcome, ResultCache
from benchmarks.results import publish, table

HEADER = ("case", "Python", "installed", "tried", "result")


def main() -> None:
    """Try the cases that were not tried yet, and publish all that were."""
    parser = argparse.ArgumentParser(prog="scripts/bench matrix", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="cases with such a text in them")
    parser.add_argument("--again", action="store_true", help="also those that failed before")
    arguments = parser.parse_args()
    cache = ResultCache(arguments.folder.resolve() / "outcomes")
    with tempfile.TemporaryDirectory() as built:
        wheel = _build(Path(built))
        _try(arguments, cache, wheel)
    outcomes = {case.name: cache.get(case.name, dict) for case in CASES if cache.has(case.name)}
    rows = [_row(case, outcomes[case.name]) for case in CASES if case.name in outcomes]
    good = sum(map(_is_good, outcomes.values()))
    rest = [case.name for case in CASES if case.name not in outcomes]
    tested = [row for row in rows if "tests" in row[3]]
    passed = [row[0] for row in rows if "tests" not in row[3] and row[4] == "passed"]
    shown = [row for row in rows if row in tested or row[0] not in passed]
    body = (
        f"{wheel.name} in a clean virtual environment each. Imported and called without an error: "
        f"{'; '.join(passed)}. Not tried: {'; '.join(rest) or 'none'}. The others:\n\n"
        f"{table(HEADER, shown)}"
    )
    headline = ("environments in which all that was tried passed", f"{good} of {len(CASES)}", "all")
    publish("Support matrix", "scripts/bench matrix", body, [headline])
    chosen = [case.name for case in CASES if _is_chosen(case, arguments.only)]
    sys.exit(any(name not in outcomes or not _is_good(outcomes[name]) for name in chosen))


def _is_chosen(case: Case, texts: Sequence[str]) -> bool:
    return any(text in case.name for text in texts)


def _is_good(outcome: Outcome) -> bool:
    return bool(outcome["did_run"] and not outcome["problem"])


def _try(arguments: argparse.Namespace, cache: ResultCache, wheel: Path) -> None:
    """Try the chosen cases, each in an environment of its own."""
    for case in CASES:
        if not _is_chosen(case, arguments.only):
            continue
        if arguments.again and cache.has(case.name) and cache.get(case.name, dict)["problem"]:
            cache.forget(case.name)
        cache.get(case.name, partial(attempt, case, wheel, arguments.folder.resolve()))


def _build(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, folder, ROOT], check=True)
    return next(folder.glob("*.whl"))


def _row(case: Case, outcome: Outcome) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in outcome["versions"].items())
    tried = [*(["import"] if case.imports else []), *(["command"] if case.calls else [])]
    if case.tests:
        tried.append("tests")
    result = outcome["tests"] or "passed"
    if outcome["problem"]:
        result = outcome["problem"].replace("|", "/").replace("\n", " ")[-300:]  # what failed
    return case.name, case.python, versions, ", ".join(tried), result


if __name__ == "__main__":
    main()
