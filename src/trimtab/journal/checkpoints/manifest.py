"""The manifest of a checkpoint: what it is, and size and checksum of every file.

torch's distributed checkpoints noticed 1 of 19 flipped bits when they were loaded (measured), and
their `.metadata` is unpickled: so every file is verified before any of them is opened.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.core.errors import RestoreError
from trimtab.core.text import printable
from trimtab.journal.files import inside, open_new, open_regular, read_json

MANIFEST = "trimtab-manifest.json"
VERSION = 1
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file as it was written."""

    size: int
    checksum: str
    """blake2b, 16 bytes: against damage, not against an attacker who can write the manifest too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """What a checkpoint is, whatever becomes of it."""

    step: int
    """The step that comes next from it."""
    data_position: int
    """Position of the next batch."""
    attempt: int
    world: int
    """Ranks that wrote it."""
    num_bytes: int
    serial: int = 0
    """Counts the checkpoints of the run in the order of saving; steps may come again."""
    fault: str = ""
    """What was wrong with its values when it was saved, in one sentence; empty if nothing was."""
    source: str = ""
    """Where in the run directory its files are, if the training loop wrote them there and they
    could not be linked."""

    def __post_init__(self) -> None:
        """Refuse what no run has written; raises ValueError."""
        for name in ("step", "data_position", "attempt", "world", "num_bytes", "serial"):
            number = getattr(self, name)
            if type(number) is not int or not -1 <= number < 2**63:
                raise ValueError(f"{name} is not a count: {number!r:.50}")
        if type(self.fault) is not str or type(self.source) is not str:
            raise ValueError("fault and source are texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is, and its files."""

    facts: CheckpointFacts
    files: Mapping[str, FileEntry]


def list_files(folder: Path) -> list[str]:
    """The files of a checkpoint, relative to its folder, in a fixed order."""
    paths = (path for path in folder.rglob("*") if path.name != MANIFEST)
    # A link is listed: whoever opens it refuses it, so that no checkpoint silently lacks a file.
    found = (path for path in paths if path.is_symlink() or path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    return {name: _describe(folder, name) for name in names}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest; it is written last, so it proves that all files were complete."""
    content = {
        "version": VERSION,
        "checkpoint": asdict(manifest.facts),
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
    }
    with open_new(folder / MANIFEST) as file:
        file.write(to_checked_json(content).encode("utf-8"))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest; raises RestoreError if it is missing, damaged or not a manifest."""
    path = folder / MANIFEST
    try:
        content = read_checked_json(path)
        if content["version"] != VERSION:
            raise RestoreError(f"{path} has version {content['version']}, expected {VERSION}")
        files = {str(name): FileEntry(**entry) for name, entry in content["files"].items()}
        return Manifest(facts=CheckpointFacts(**content["checkpoint"]), files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RestoreError(f"{folder} has no readable manifest: {error}") from error


def find_damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """What is wrong with some of the files in the folder of a checkpoint, one sentence each."""
    damage = []
    for name in names:
        entry, shown = manifest.files[name], printable(name[:200])
        try:
            size = inside(folder, name).stat().st_size
            if size != entry.size:
                damage.append(f"{shown} has {size} bytes, {entry.size} were written")
            elif _describe(folder, name).checksum != entry.checksum:
                damage.append(f"{shown} has changed since it was written (checksum)")
        except OSError as error:
            damage.append(f"{shown} cannot be read: {error.strerror}")
    return damage


def to_checked_json(content: Mapping[str, Any]) -> str:
    """JSON that carries its own checksum."""
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1)


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read what `to_checked_json` wrote; raises ValueError if a bit of its content has changed."""
    content = read_json(path)
    if content.pop("checksum", None) != _checksum(content):
        raise ValueError("its content does not match its checksum")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _describe(folder: Path, name: str) -> FileEntry:
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with open_regular(inside(folder, name)) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileEntry(size=size, checksum=digest.hexdigest())


def link_files(source: Path, target: Path) -> str:
    """Link every file of a folder into a different one; returns why it is not possible, if so.

    A link takes no space and outlives the deletion of the original. It is no copy: a file that is
    overwritten in place changes here as well, which its checksum shows.
    """
    linked: list[Path] = []
    try:
        for name in list_files(source):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(inside(source, name), path, follow_symlinks=False)
            linked.append(path)
    except OSError as error:
        for path in linked:
            path.unlink()
        return f"{source} cannot be linked: {error.strerror}"
    return ""
