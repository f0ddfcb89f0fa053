"""RunDirectory: where trimtab keeps what it knows about a run.

<run>/trimtab/
    manifest.json                  config, versions, seeds: what the run was
    journal/                       the records and events
    judge.json                     what the judge knew a while ago, for a resume
    notes.log                      notes that people added
    incidents/0001-step-000312/    one folder per incident
    dashboard.html                 the page of the run
    exit.json                      why the run ended itself, if it did
    proposal.json, answer.json     an action that waits for a person, and what they said
    hang/rank-00003.txt            stacks of a run that stood still
    checkpoints.json               the checkpoints and their verdicts
    checkpoints/step-00000800/     one folder per checkpoint
    ship/mlflow.json               how far each sink has come, and what it remembers
    ship/ship.log                  what the shipper reports
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.errors import JournalError
from trimtab.core.jsonable import to_jsonable
from trimtab.journal.files import read_regular, replace_file

_HOME = "trimtab"
_JOURNAL_FILE = re.compile(r"\d{8,}\.(log|seg)")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one run; nothing is created until something is written."""

    root: Path

    @classmethod
    def find(cls, path: Path) -> "RunDirectory | None":
        """Return the run directory at a path: the run's folder or its trimtab/ folder."""
        candidates = [cls(path)]
        if path.resolve().name == _HOME:
            candidates.append(cls(path.resolve().parent))
        return next((run for run in candidates if run.exists()), None)

    @property
    def home(self) -> Path:
        """The folder that holds everything trimtab writes."""
        return self.root / _HOME

    @property
    def manifest(self) -> Path:
        """The file with the configuration of the run."""
        return self.home / "manifest.json"

    @property
    def journal(self) -> Path:
        """The folder of the journal."""
        return self.home / "journal"

    @property
    def notes(self) -> Path:
        """The file of people's notes."""
        return self.home / "notes.log"

    @property
    def incidents(self) -> Path:
        """The folder that holds one folder per incident."""
        return self.home / "incidents"

    def tracker_link(self) -> str | None:
        """Return the address of the run's page, if it was shipped to a tracker that has one."""
        for path in sorted(self.home.glob("ship/*.json")):
            try:
                link = json.loads(read_regular(path))["memory"]["link"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
            if isinstance(link, str) and link.startswith(("http://", "https://")):
                return link
        return None

    def exists(self) -> bool:
        """Return whether trimtab has written a manifest or a journal here."""
        # A folder called trimtab/journal alone is not enough: a source tree has one too.
        if self.manifest.is_file():
            return True
        try:
            return any(_JOURNAL_FILE.fullmatch(path.name) for path in self.journal.iterdir())
        except OSError:
            return False

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest atomically: a reader sees the old one or the new one."""
        text = json.dumps(to_jsonable(manifest), indent=2, allow_nan=False) + "\n"
        replace_file(self.manifest, text)

    def read_manifest(self) -> dict[str, Any]:
        """Return all fields of the manifest, known or not; empty if none was written."""
        try:
            manifest = json.loads(read_regular(self.manifest))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise JournalError(
                f"{self.manifest} cannot be read as JSON: {error}; restore it from a copy, or "
                "remove it to read the run without its configuration"
            ) from error
        if not isinstance(manifest, dict):
            raise JournalError(
                f"{self.manifest} should hold a table of fields, got {type(manifest).__name__}; "
                "restore it from a copy, or remove it"
            )
        return manifest
