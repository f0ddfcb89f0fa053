"""The support matrix: `scripts/bench matrix FOLDER [--only TEXT...] [--again]`.

Every case gets a new virtual environment with the wheel of this checkout. Outcomes are kept in
FOLDER: a matrix that was interrupted continues, and --again repeats the cases that failed. Needs a
package index.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from benchmarks.matrix.cases import CASES, Case
from benchmarks.matrix.environments import Environment, Failed, Package, find_interpreter
from benchmarks.result_cache import Outcome, ResultCache
from benchmarks.results import ROOT, publish, table

HEADER = ("case", "Python", "installed", "tried", "result")


CORE = {"numpy", "rich", "typer"}
TEST_TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.120", "jsonschema>=4.20")
QUIETLY = ("-p", "no:cacheprovider", "--continue-on-collection-errors")
SHOWN = ("torch", "numpy", "typer", "rich")


def attempt(case: Case, wheel: Path, folder: Path) -> dict[str, Any]:
    """What came out: the versions, and the first thing that failed, if any.

    The environment of a case that failed stays, with everything that its programs printed.
    """
    outcome: dict[str, Any] = {"did_run": True, "problem": "", "tests": "", "versions": {}}
    interpreter = find_interpreter(case.python)
    if interpreter is None:
        return outcome | {"problem": f"no Python {case.python} on this machine", "did_run": False}
    name = case.name.replace(" ", "-")
    tree = _copy_tree(folder / "trees" / name)
    environment = Environment(folder / "venvs" / name)
    try:
        if environment.folder.exists():  # it failed the last time
            environment.pip("--force-reinstall", "--no-deps", str(wheel))
        else:
            environment.create(interpreter)
            _install(case, wheel, environment)
        packages = environment.packages()
        wanted = [case.extra] if case.extra in packages else []
        outcome["versions"] = {
            name: packages[name].version for name in (*wanted, *SHOWN) if name in packages
        }
        outcome["packages"] = len(packages)
        if case.is_core_alone:
            _check_core(packages, case.python)
        for name in case.imports:
            environment.run(["python", "-c", f"import {name}"], folder)
        for call in case.calls:
            environment.run(shlex.split(call.command), tree, codes=call.codes)
        if case.tests:
            outcome["tests"] = _test(case, environment, tree)
    except Failed as error:
        outcome["problem"] = str(error)
    else:
        environment.remove()
        shutil.rmtree(tree)
    return outcome


def _check_core(packages: Mapping[str, Package], python: str) -> None:
    """Raises Failed if something is installed that the core dependencies do not need."""
    environment = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}

    def needed_by(name: str) -> set[str]:
        wanted = packages[name].requires if name in packages else ()
        used = [one for one in wanted if one.marker is None or one.marker.evaluate(environment)]
        return {str(canonicalize_name(one.name)) for one in used}

    reached, following = {"trimtab"}, needed_by("trimtab")
    if following != CORE:
        raise Failed(f"trimtab needs {', '.join(sorted(following))}")
    while following:
        reached |= following
        following = set().union(*map(needed_by, following)) - reached
    if strangers := set(packages) - reached:
        raise Failed(f"installed besides the core dependencies: {', '.join(sorted(strangers))}")


def _install(case: Case, wheel: Path, environment: Environment) -> None:
    pins = list(case.pins)
    if case.torch is not None:
        # By itself first: asked for by another package, pip would take the newest build.
        environment.pip(f"torch=={case.torch}")
        pins.append(f"torch=={case.torch}")
    constraints = environment.folder / "constraints.txt"
    constraints.write_text("\n".join(pins), encoding="utf-8")
    extra = f"[{case.extra}]" if case.extra else ""
    environment.pip("--constraint", str(constraints), f"trimtab{extra} @ {wheel.as_uri()}", *pins)


def _test(case: Case, environment: Environment, tree: Path) -> str:
    """The closing line of pytest, over the installed package."""
    constraints = environment.folder / "constraints.txt"
    environment.pip("--constraint", str(constraints), *TEST_TOOLS, *case.tools)
    # Plug-ins and torchtitan's tests are slow by mark; their folder is chosen on purpose.
    marks = [] if "torchtitan" in case.tests[0] else ["-m", "not slow"]
    command = ["python", "-m", "pytest", "-q", *QUIETLY, *marks, *case.tests]
    printed = environment.run(command, tree)
    closing = printed.strip().splitlines()[-1]
    return re.sub(r" in .*|=", "", closing).strip()


def _copy_tree(tree: Path) -> Path:
    """The project without its package, so that only the installed one can be imported."""
    shutil.rmtree(tree, ignore_errors=True)
    skipped = shutil.ignore_patterns("src", ".git", "__pycache__", "build", "dist", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=skipped)
    return tree


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
