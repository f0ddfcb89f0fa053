"""Approval: the run proposes an action, a person approves or declines it.

    the run                          a person, on any machine that sees the run directory
    Proposal.write  proposal.json ->  trimtab follow shows it
    answer_to       answer.json   <-  trimtab answer RUN yes, or no

An answer names the number of its proposal, so that a late one is never taken for the next. A
proposal that nobody answers in time falls back to the default that it states.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from trimtab.core.errors import JournalError
from trimtab.journal.directory import RunDirectory
from trimtab.journal.files import read_json, replace_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An action that waits for a person."""

    number: int
    step: int
    action: str
    """What is to be done, in one sentence."""
    reason: str
    default: str
    """What happens without an answer."""
    expires: float
    """When, in seconds since the epoch."""

    def write(self, run: RunDirectory) -> None:
        """Propose it; replaces an earlier proposal."""
        _write(run.home / "proposal.json", asdict(self))

    @classmethod
    def read(cls, run: RunDirectory) -> Self | None:
        """Return the proposal that waits for an answer; None if there is none or it has expired."""
        values = _read(run.home / "proposal.json")
        try:
            found = cls(
                number=int(values["number"]),
                step=int(values["step"]),
                action=str(values["action"]),
                reason=str(values["reason"]),
                default=str(values["default"]),
                expires=float(values["expires"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        is_open = found.expires > time.time() and answer_to(run, found.number) is None
        return found if is_open else None


def answer(run: RunDirectory, *, is_approved: bool) -> Proposal:
    """Answer the open proposal of a run; returns it."""
    proposal = Proposal.read(run)
    if proposal is None:
        raise JournalError(
            f"{run.root} has no proposal that waits for an answer; trimtab follow shows what waits"
        )
    _write(
        run.home / "answer.json",
        {"number": proposal.number, "is_approved": is_approved, "clock": time.time()},
    )
    return proposal


def answer_to(run: RunDirectory, number: int) -> bool | None:
    """Return whether the proposal of this number was approved; None without an answer."""
    values = _read(run.home / "answer.json")
    approved = values.get("is_approved")
    return approved if values.get("number") == number and isinstance(approved, bool) else None


def withdraw(run: RunDirectory) -> None:
    """Remove the proposal, if there is one: it was answered, has expired, or is pointless."""
    for name in ("proposal.json", "answer.json"):
        (run.home / name).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def _write(path: Path, values: dict[str, Any]) -> None:
    try:
        replace_file(path, json.dumps(values) + "\n")
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error}") from error
