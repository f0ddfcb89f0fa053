"""quarantine.jsonl: data positions that are passed over, also after a relaunch.

One line for each range, with the first and the last position, the step and the reason.
"""

import json
import time
from collections.abc import Collection
from pathlib import Path

from trimtab.live.recover.order import as_ranges
from trimtab.live.shield import log


def read_quarantine(path: Path) -> tuple[int, ...]:
    """The positions in a file; none if there is no file. Lines that are damaged are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    positions: set[int] = set()
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            positions |= set(range(int(entry["first"]), int(entry["last"]) + 1))
        except (ValueError, KeyError, TypeError):
            log.warning("trimtab: line %d of %s is damaged and left out", number, path)
    return tuple(sorted(positions))


def add_to_quarantine(path: Path, positions: Collection[int], *, step: int, reason: str) -> None:
    """Append positions; what is in the file stays."""
    if not positions:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = [
        json.dumps({"first": first, "last": last, "step": step, "reason": reason, "time": now})
        for first, last in as_ranges(positions)
    ]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
