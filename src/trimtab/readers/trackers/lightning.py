"""Lightning's CSVLogger: `version_N/metrics.csv`, a new version for every start of a run."""

import re
from collections.abc import Sequence
from pathlib import Path

from trimtab.readers import csv_log
from trimtab.readers.formats import Format

_VERSION = re.compile(r"version_(\d{1,9})")


def metrics_among(files: Sequence[Path]) -> list[Path]:
    """The files of metrics, the highest version first."""
    found = [file for file in files if file.name == "metrics.csv"]
    return sorted(found, key=lambda path: (_version(path), str(path)), reverse=True)


def _version(path: Path) -> int:
    found = _VERSION.fullmatch(path.parent.name)
    return int(found[1]) if found else -1


LIGHTNING = Format(
    name="lightning",
    description="metrics.csv of Lightning's CSVLogger",
    suffixes=(),
    matches=lambda head: False,  # a file that is given by its name is plain CSV
    load=csv_log.read,
    logs_among=metrics_among,
)
"""The format."""
