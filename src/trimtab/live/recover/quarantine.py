"""quarantine.jsonl: data positions and sources that are passed over, also after a relaunch.

One line for each range of positions, with the first and the last one, or for each source; with the
step and the reason.
"""

import json
import time
from collections.abc import Collection
from pathlib import Path

from trimtab.live.recover.order import as_ranges
from trimtab.live.shield import log

Quarantined = tuple[int | str, ...]
"""Data positions, and sources by name."""


def read_quarantine(path: Path) -> Quarantined:
    """What a file names; nothing if there is no file. Lines that are damaged are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    positions: set[int] = set()
    sources: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            if "source" in entry:
                sources.append(str(entry["source"]))
                continue
            positions |= set(range(int(entry["first"]), int(entry["last"]) + 1))
        except (ValueError, KeyError, TypeError):
            log.warning("trimtab: line %d of %s is damaged and left out", number, path)
    return (*sorted(positions), *dict.fromkeys(sources))


def add_to_quarantine(
    path: Path,
    positions: Collection[int],
    source: str | None = None,
    *,
    step: int,
    reason: str,
) -> None:
    """Append positions and a source; what is in the file stays."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    facts = {"step": step, "reason": reason, "time": now}
    entries: list[dict[str, object]] = [
        {"first": first, "last": last, **facts} for first, last in as_ranges(positions)
    ]
    if source is not None:
        entries.append({"source": source, **facts})
    if not entries:
        return
    lines = [json.dumps(entry) for entry in entries]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
