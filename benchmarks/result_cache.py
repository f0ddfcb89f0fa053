"""ResultCache: outcomes of runs by name, in a folder, so that a measurement can continue."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]


class ResultCache:
    """Outcomes that are measured once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """Whether the outcome of that name was measured."""
        return self._path(name).exists()

    def get(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> Outcome:
        """The outcome of that name, measured if it is not there."""
        path = self._path(name)
        if not path.exists():
            path.write_text(json.dumps(measure()), encoding="utf-8")
            print(name, path.read_text(encoding="utf-8"), file=sys.stderr, flush=True)
        outcome: Outcome = json.loads(path.read_text(encoding="utf-8"))
        return outcome

    def forget(self, name: str) -> None:
        """Measure the outcome of that name again the next time."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', ' ')}.json"
