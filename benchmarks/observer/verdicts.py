"""A hundred runs, observed as they grow and diagnosed when they are over: the same, field by field?

The runs are public logs, written as journals in pieces of random length with a look of the observer
after each, and short runs of the lab with a fault.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.observing import STOPPED

import trimtab
from benchmarks.results import publish, table
from trimtab.core.block import Block
from trimtab.core.errors import TrimtabError
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.observe.run_observer import VERDICT_FILE, RunObserver
from trimtab.readers import read_log

MAX_RECORDS = 20_000


def main() -> None:
    """Compare and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench observer verdicts")
    parser.add_argument("folder", type=Path, help="a folder of logs")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    equal, different, incidents = 0, [], 0
    for number, (name, block) in enumerate(_runs(given.folder)):
        if number == given.count:
            break
        observed, diagnosed = _both(block, number)
        incidents += len(diagnosed["incidents"])
        equal += observed == diagnosed
        if observed != diagnosed:
            fields = [key for key in diagnosed if observed.get(key) != diagnosed[key]]
            different.append(f"{name}: {', '.join(fields)}")
        print(f"{number + 1} {name}: {'equal' if observed == diagnosed else different[-1]}")
    rows = [["runs", equal + len(different)], ["equal in every field", equal]]
    rows += [["incidents in them", incidents], ["different", "; ".join(different) or "none"]]
    body = (
        "Public logs as journals, written in pieces of random length with a look of the observer "
        "after each; its last report against `trimtab diagnose RUN`, field by field.\n\n"
    ) + table(["", ""], rows)
    if not given.dry:
        publish(
            "Observer: the same verdict as diagnose", "scripts/bench observer verdicts LOGS", body
        )
    print(body)


def _runs(folder: Path) -> Iterator[tuple[str, Block]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    random.Random(0).shuffle(paths)
    for path in paths:
        try:
            run = read_log(path)
        except (TrimtabError, OSError, UnicodeError):
            continue
        if "loss" in run.block.columns and 100 <= len(run.block) <= MAX_RECORDS:
            yield path.name, run.block


def _both(block: Block, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        run = RunDirectory(Path(name))
        journal = JournalWriter(run)
        observer = RunObserver(run)
        for at, record in enumerate(block.records(), start=1):
            journal.append(record.step, record.signals, record.attempt)
            if at % draw.randint(50, 2000) == 0:
                observer.poll()
        journal.close("finished")
        observer.poll()
        observer.note_standing(STOPPED)
        observer.close()
        observed = json.loads((run.home / VERDICT_FILE).read_text(encoding="utf-8"))
        diagnosed = trimtab.diagnose(run.root).to_dict()
        return observed, json.loads(json.dumps(diagnosed))


if __name__ == "__main__":
    main()
