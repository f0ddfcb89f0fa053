"""Rollback: what a person has asked the next launch of a run to go back to, and what it changes.

    trimtab rollback           writes rollback.json: a checkpoint, and what changes from there on
    the next launch            loads the checkpoint, and marks the request as taken at its first
                               record: a launch that is killed before that leaves it as it was
    every launch from then on  keeps what was changed: data left out, a lower learning rate

A request is bound to its checkpoint by a digest of the checkpoint's manifest: one that was made for
a different run loads nothing.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from trimtab.core.errors import RestoreError
from trimtab.journal.checkpoints.index import CheckpointEntry, CheckpointIndex, Verdict
from trimtab.journal.checkpoints.manifest import MANIFEST, read_checked_json, to_checked_json
from trimtab.journal.files import inside, read_regular, replace_file

FILE, LR_FACTOR = "rollback.json", "lr_factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a run is trained with besides its own settings, since it was rolled back."""

    lr_factor: float = 1.0
    """What every learning rate is multiplied by, on top of its schedule."""
    without_sources: tuple[str, ...] = ()
    """Names of sources whose data is not trained on."""
    bad_data: tuple[tuple[int, float | None], ...] = ()
    """Data positions of steps that are discarded, each with the fingerprint of its batches."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant; raises ValueError."""
        if type(self.lr_factor) is not float or not 0.0 < self.lr_factor <= 1.0:  # or NaN
            raise ValueError(f"a factor of the learning rate is above 0, up to 1: {self.lr_factor}")
        if not all(type(name) is str and name for name in self.without_sources):
            raise ValueError("a source has no name")
        kinds = {(type(position), type(mark)) for position, mark in self.bad_data}
        if not kinds <= {(int, float), (int, type(None))}:
            raise ValueError("not positions of data with their fingerprints")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return those of a file; raises ValueError, KeyError or TypeError for anything else."""
        return cls(
            lr_factor=values["lr_factor"],
            without_sources=tuple(values["without_sources"]),
            bad_data=tuple((position, mark) for position, mark in values["bad_data"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """One request, and what it changes from the checkpoint on."""

    step: int
    """The step that comes next from the checkpoint."""
    checkpoint: str
    """The name of the checkpoint's folder."""
    digest: str
    """The digest of the checkpoint's manifest."""
    anyway: bool
    """Whether the checkpoint is loaded even if it is bad."""
    conditions: Conditions
    """What the run is trained with once the request is taken."""
    earlier: Conditions
    """What it is trained with until then, since an earlier rollback."""
    is_taken: bool = False
    """Whether a launch has gone on from the checkpoint."""

    @classmethod
    def read(cls, home: Path) -> Self | None:
        """Return the last request to a run; None without one, RestoreError if it is unreadable."""
        path = home / FILE
        try:
            values = read_checked_json(path)
            if type(values["step"]) is not int or type(values["is_taken"]) is not bool:
                raise ValueError("a field has the wrong type")
            parts = {name: Conditions.from_json(values[name]) for name in ("conditions", "earlier")}
            return cls(**{**values, **parts})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RestoreError(f"{path} cannot be read: {error}; remove it") from error

    def write(self, home: Path) -> None:
        """Replace the last request."""
        # By way of JSON: what is read has lists for tuples, and its checksum is compared.
        replace_file(home / FILE, to_checked_json(json.loads(json.dumps(asdict(self)))))

    def take(self, home: Path) -> None:
        """Mark it as taken: the run goes on from its checkpoint."""
        replace(self, is_taken=True).write(home)

    @property
    def in_force(self) -> Conditions:
        """What a launch that does not begin at the checkpoint is trained with."""
        return self.conditions if self.is_taken else self.earlier

    def find(self, index: CheckpointIndex) -> CheckpointEntry:
        """Return the checkpoint to load; raises RestoreError if it cannot be loaded."""
        entry = next((one for one in index.entries if one.folder == self.checkpoint), None)
        if entry is None or digest_of(index, entry) != self.digest:
            problem = "is gone, or is a different checkpoint now"
        elif entry.verdict is Verdict.BAD and not self.anyway:
            problem = f"is bad: {entry.reason}"
        else:
            return entry
        raise RestoreError(
            f"the rollback to step {self.step} cannot be made: its checkpoint {problem}; ask for "
            f"another one with `trimtab rollback`, or remove {FILE}"
        )


def pending_rollback(home: Path) -> Rollback | None:
    """Return the request that no launch has taken yet; None if there is none."""
    found = Rollback.read(home)
    return None if found is None or found.is_taken else found


def digest_of(index: CheckpointIndex, entry: CheckpointEntry) -> str:
    """Return a digest of a checkpoint's manifest, which has the checksum of every file."""
    try:
        content = read_regular(inside(index.folder, entry.folder, MANIFEST))
    except OSError:
        return ""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
