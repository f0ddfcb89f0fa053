"""RunDirectory: where trimtab keeps what it knows about a run.

<run>/trimtab/
    manifest.json                  config, versions, seeds: what the run was
    journal/                       the records and events
    notes.log                      notes that people added
    batches/0000000312.json        what was unusual in the batches around a bad step
    observer.jsonl                 what the observer says, a line for each change
    incidents/0001-step-000312/    one folder per incident, by the observer
    verdict.json, verdicts.json    the observer's report on the run, and on its checkpoints
    judge.json                     what the observer's judge knew a while ago
    dashboard.html                 the page of the run
    exit.json                      why the run ended itself, if it did
    rollback.json                  the checkpoint that a person has asked it to go back to
    hang/rank-00003.txt            stacks of a run that stood still
    checkpoints.json               the checkpoints
    checkpoints/step-00000800/     one folder per checkpoint
    ship/mlflow.json               how far each sink has come, and what it remembers
    ship/ship.log                  what the shipper reports
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.errors import JournalError
from trimtab.core.jsonable import to_jsonable
from trimtab.journal.files import JournalFiles, inside, read_json, read_regular, replace_file

_HOME = "trimtab"
_INCIDENT_FOLDER = re.compile(r"[0-9]{4,}-step-(-|[0-9])[0-9]{5,}")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one run; nothing is created until something is written.

    `root` may be a link. Below it no link is followed: every folder raises OSError if it is one.
    """

    root: Path

    @classmethod
    def find(cls, path: Path) -> "RunDirectory | None":
        """Return the run directory at a path: the run's folder or its trimtab/ folder."""
        candidates = [cls(path)]
        real = Path(os.path.realpath(path))  # `Path.resolve` raises at a link to itself
        if real.name == _HOME:
            candidates.append(cls(real.parent))
        return next((run for run in candidates if run.exists()), None)

    @property
    def home(self) -> Path:
        """The folder that holds everything trimtab writes."""
        return inside(self.root, _HOME)

    def folder(self, name: str) -> Path:
        return inside(self.root, _HOME, name)

    @property
    def manifest(self) -> Path:
        return self.home / "manifest.json"

    @property
    def journal(self) -> Path:
        return self.folder("journal")

    @property
    def notes(self) -> Path:
        return self.home / "notes.log"

    @property
    def incidents(self) -> Path:
        """The folder that holds one folder per incident."""
        return self.folder("incidents")

    def tracker_link(self) -> str | None:
        """Return the address of the run's page, if it was shipped to a tracker that has one."""
        for path in sorted(self.folder("ship").glob("*.json")):
            try:
                link = read_json(path)["memory"]["link"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if isinstance(link, str) and link.startswith(("http://", "https://")):
                return link
        return None

    def exists(self) -> bool:
        """Return whether trimtab has written a manifest or a journal here, and no link in it."""
        # A folder called trimtab/journal alone is not enough: a source tree has one too.
        try:
            journal, *_ = self.journal, self.incidents, self.folder("ship")
            return self.manifest.is_file() or bool(JournalFiles(journal).listed())
        except OSError:
            return False

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest atomically: a reader sees the old one or the new one."""
        text = json.dumps(to_jsonable(manifest), indent=2, allow_nan=False) + "\n"
        replace_file(self.manifest, text)

    def read_manifest(self) -> dict[str, Any]:
        """Return all fields of the manifest, known or not; empty if none was written."""
        try:
            return read_json(self.manifest)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise JournalError(
                f"{self.manifest} cannot be read as JSON: {error}; restore it from a copy, or "
                "remove it to read the run without its configuration"
            ) from error


def incident_folder_name(number: int, onset: int) -> str:
    """Return the name of an incident's folder; names sort in the order of onset."""
    # Made of two integers, so no text from a log can lead out of the parent folder.
    return f"{int(number):04d}-step-{int(onset):06d}"


def incident_folders(folder: Path) -> list[Path]:
    """Return the folders of single incidents in one, in order; links are left out."""
    try:
        return sorted(
            path
            for path in folder.iterdir()
            if _INCIDENT_FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        )
    except OSError:
        return []


def read_postmortems(home: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the post-mortems of a run, each with its folder and name; what is none is left out."""
    with suppress(OSError):
        for folder in incident_folders(inside(home, "incidents")):
            for path in sorted(folder.glob("postmortem.*")):
                with suppress(OSError):
                    yield f"{folder.name}/{path.name}", read_regular(path)
