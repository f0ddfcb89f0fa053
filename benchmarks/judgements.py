"""What trimtab concludes about many runs, reduced to what a refactoring must not change.

scripts/bench judgements write FILE FOLDER...    judge every log and run directory in the folders
scripts/bench judgements compare FILE FILE       exit 1 and list the differences, if there are any

Each run is judged by both rule sets with `trimtab diagnose --json`, in a process of its own, so
that two checkouts of trimtab can be compared. Kept of each incident: onset, peak, end, class, cause
and action.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RULE_SETS = ("trimtab", "textbook")


def main() -> None:
    """Write or compare."""
    match sys.argv[1:]:
        case ["write", target, *folders] if folders:
            runs = [run for folder in folders for run in _runs_in(Path(folder))]
            Path(target).write_text(json.dumps(_judge_all(runs), indent=1), encoding="utf-8")
            print(f"{len(runs)} runs judged by {len(RULE_SETS)} rule sets")
        case ["compare", before, after]:
            old, new = (json.loads(Path(path).read_text("utf-8")) for path in (before, after))
            differences = list(_differences(old, new))
            print("\n".join(differences) or f"{len(old)} judgements, all equal")
            sys.exit(1 if differences else 0)
        case _:
            sys.exit(__doc__)


def _runs_in(folder: Path) -> list[Path]:
    """The CSV logs and run directories of a folder."""
    journals = [path.parent for path in sorted(folder.glob("*/trimtab"))]
    return [*sorted(folder.glob("*.csv")), *journals]


def _judge_all(runs: list[Path]) -> dict[str, Any]:
    tasks = [(run, rules) for run in runs for rules in RULE_SETS]
    with ThreadPoolExecutor(max_workers=2) as pool:
        judged = list(pool.map(lambda task: _judge(*task), tasks))
    names = [f"{run.name} {rules}" for run, rules in tasks]
    return dict(zip(names, judged, strict=True))


def _judge(run: Path, rules: str) -> Any:
    arguments = ["diagnose", str(run), "--rules", rules, "--json"]
    command = [sys.executable, "-m", "trimtab.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return f"exit code {done.returncode}"
    return [_reduced(incident) for incident in json.loads(done.stdout)["incidents"]]


def _reduced(incident: dict[str, Any]) -> dict[str, Any]:
    seen = incident["incident"]
    cause = incident["cause"]
    return {
        "onset": seen["onset"],
        "peak": seen["peak"],
        "end": seen["end"],
        "class": seen["incident_class"],
        "cause": cause and cause["id"],
        "action": incident["action"]["kind"],
    }


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            yield f"{name}\n  before {json.dumps(before)}\n  after  {json.dumps(after)}"


if __name__ == "__main__":
    main()
