"""LogfmtReader: logs of `key=value` pairs, one record per line.

time=12:00:01 step=100 loss=2.71 eval_loss=2.80
"""

import math
import re
from pathlib import Path

from trimtab.core.block import Block, Record
from trimtab.core.errors import UnreadableLog
from trimtab.core.run import Run

_PAIR = re.compile(r"([\w.]+)=(\S+)")


class LogfmtReader:
    """Reads logfmt, the format of many Go services."""

    name = "logfmt"
    description = "logfmt (key=value pairs, one record per line)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the first line is made of key=value pairs, and one of them is the step."""
        first_line = head.lstrip().partition(b"\n")[0]
        words = first_line.decode("utf-8", errors="replace").split()
        names = [pair[1] for word in words if (pair := _PAIR.fullmatch(word))]
        return len(names) == len(words) and "step" in names

    def read(self, path: Path) -> Run:
        """Read the log; raise `UnreadableLog` if it has no records."""
        records: list[Record] = []
        skipped = 0
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            signals = _numbers(line)
            step = signals.pop("step", None)
            if step is None or not math.isfinite(step) or not signals:
                skipped += bool(line.strip())
                continue
            records.append(Record(step=int(step), tick=len(records), signals=signals))
        if not records:
            raise UnreadableLog(f"{path} has no line with a step and a value")
        notes = (f"{skipped} lines without a step and a value are left out.",) if skipped else ()
        return Run(block=Block.from_records(records), notes=notes)


def _numbers(line: str) -> dict[str, float]:
    """The pairs of a line whose value is a number, NaN and infinity included."""
    numbers = {}
    for name, value in _PAIR.findall(line):
        try:
            numbers[name] = float(value)
        except ValueError:
            continue
    return numbers
