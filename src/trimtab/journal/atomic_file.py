"""Replace a small file atomically: a reader sees the old one or the new one."""

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write the text under a name of its own, and give it the file's name once it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
