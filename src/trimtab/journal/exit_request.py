"""ExitRequest: a run that ends itself says why, and whether a relaunch can help.

A launcher such as torchrun hides the exit codes of its workers, so the request is also a file:
`trimtab/exit.json` in the run directory, and `exit.json` in the folder that `trimtab run` names in
the environment. The run writes `run.json` there at its start, so that the supervisor finds it.
"""

import json
import os
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self

from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import read_json, replace_file

SUPERVISOR_FOLDER = "TRIMTAB_SUPERVISOR"
"""The environment variable in which `trimtab run` passes its folder to the run."""


class RunExit(IntEnum):
    """Exit codes of a run that trimtab has ended."""

    RELAUNCH = 75
    """A relaunch can help. Source: EX_TEMPFAIL of sysexits.h, "the user is invited to retry"."""
    STOP = 76
    """A relaunch cannot help: the cause is in the settings, the code or the precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRequest:
    """Why a run ended itself, and what the next one should know."""

    code: RunExit
    reason: str
    step: int
    """The step at which the run ended."""

    def write(self, run: RunDirectory) -> None:
        """Leave the request in the run directory and, if there is one, with the supervisor."""
        text = json.dumps(asdict(self)) + "\n"
        for folder in (run.home, supervisor_folder()):
            if folder is not None:
                replace_file(folder / "exit.json", text)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the request in a folder; None if there is none that can be read."""
        try:
            values = read_json(folder / "exit.json")
            return cls(
                code=RunExit(values["code"]), reason=str(values["reason"]), step=int(values["step"])
            )
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None


def supervisor_folder() -> Path | None:
    """Return the folder of the supervisor that launched this process, if one did."""
    folder = os.environ.get(SUPERVISOR_FOLDER)
    return Path(folder) if folder and Path(folder).is_dir() else None


def announce_run(run: RunDirectory) -> None:
    """Remove an old request and tell the supervisor the run directory; called at the start."""
    (run.home / "exit.json").unlink(missing_ok=True)
    folder = supervisor_folder()
    if folder is not None:
        replace_file(folder / "run.json", json.dumps({"run": str(run.root)}) + "\n")


def announced_run(folder: Path) -> RunDirectory | None:
    """Return the run directory that a run has announced in the supervisor's folder."""
    try:
        return RunDirectory(Path(read_json(folder / "run.json")["run"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
