"""Replace a small file atomically: a reader sees the old one or the new one."""

import os
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write the content under a name of its own; it gets the file's name once it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
