"""Format: one of trimtab's own log formats; a new one is a value of it, listed in `reading.py`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.errors import UnreadableLog
from trimtab.core.run import Run
from trimtab.readers.log_file import Progress
from trimtab.readers.runs import separate
from trimtab.readers.table import Table, Wanted, to_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one log format is recognised and read."""

    name: str
    """As given to `--format`."""
    description: str
    """What a file of this format is, in a few words."""
    suffixes: tuple[str, ...] = ()
    """Tried only if no format is recognised by its content."""
    matches: Callable[[bytes], bool] = lambda head: False
    """Whether a file that begins with these bytes is of this format; not every format can say."""
    load: Callable[[Path, Progress, Wanted], Table]
    """Read the file; raises UnreadableLog if it cannot be, and passes OSError on."""
    finish: Callable[[Table], None] = lambda table: None
    """Correct what the writers of such files are known to do to the numbers of a run."""
    binary: bool = False
    """Whether it begins with bytes that no text and no other format begins with."""
    logs_among: Callable[[Sequence[Path]], Sequence[Path]] = lambda files: ()
    """Which of the files under a folder, or the folders around them, are logs of this format, the
    one to read first."""

    def read(self, path: Path, progress: Progress, wanted: Wanted) -> Run:
        """Read the file, or one of the runs in it; raises LogError if there is nothing to judge."""
        table = self.load(path, progress, wanted)
        if not table.num_rows:
            found = f" ({' '.join(table.notes)})" if table.notes else ""
            raise UnreadableLog(
                f"{path} holds no values{found}; check that the run logged anything"
            )
        separate(table, path, wanted.run)
        self.finish(table)
        return to_run(table, path, self.name, wanted)
