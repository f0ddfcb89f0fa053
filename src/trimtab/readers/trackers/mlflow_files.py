"""MLflow's file store: a folder for each run, a file for each metric, a line for each value.

mlruns/<experiment>/<run>/metrics/train/loss holds lines of `timestamp value step`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from trimtab.readers.folders import first_number, list_log_files, read_start
from trimtab.readers.formats import Format
from trimtab.readers.log_file import LineFile, Progress
from trimtab.readers.table import MAX_COLUMNS, Table, Wanted
from trimtab.readers.trackers.conventions import restore_if_hf
from trimtab.readers.trackers.points import Points

_METRICS = "metrics"
_LARGEST = 2**62
_STARTED = re.compile(rb"(?m)^start_time: (\d{1,18})\s*$")

_Line = tuple[int, str, int, float]
"""Time in milliseconds, name, step, value: sorted, they are in the order of logging."""


def _read(path: Path, progress: Progress, wanted: Wanted) -> Table:
    home = path / _METRICS
    files = list_log_files(home)[:MAX_COLUMNS]
    lines: list[_Line] = []
    num_bad = num_cut = 0
    for done, file in enumerate(files, start=1):
        log = LineFile(file)
        for line in (line for chunk in log.chunks() for line in chunk if line.strip()):
            parsed = _parse(file.relative_to(home).as_posix(), line)
            if log.unfinished:
                num_cut += 1  # half a line may be half a number
            elif parsed is None:
                num_bad += 1
            else:
                lines.append(parsed)
        progress(done, len(files))
    points = Points()
    for time, name, step, value in sorted(lines, key=lambda line: line[0]):
        points.add(name, step, value, time / 1000)
    table = points.to_table()
    table.note_counts(
        {
            "line{s} {is} not 'timestamp value step' and left out": num_bad,
            "last line{s} of a metric, cut off in the middle, {is} left out": num_cut,
        }
    )
    return table


def _runs_among(files: Sequence[Path]) -> list[Path]:
    homes = {parent for file in files for parent in file.parents}
    runs = [file.parent for file in files if file.name == "meta.yaml"]
    runs = [run for run in runs if run / _METRICS in homes]
    started = {run: first_number(_STARTED, read_start(run / "meta.yaml", 1 << 12)) for run in runs}
    return sorted(runs, key=lambda run: (started[run], run.name), reverse=True)


def _parse(name: str, line: str) -> _Line | None:
    words = line.split()
    try:
        time, value = int(words[0]), float(words[1])
        step = int(words[2]) if len(words) > 2 else 0
    except (ValueError, IndexError):
        return None
    return (time, name, step, value) if max(abs(time), abs(step)) <= _LARGEST else None


MLFLOW = Format(
    name="mlflow",
    description="run folders of MLflow",
    load=_read,
    finish=restore_if_hf,
    logs_among=_runs_among,
)
