"""Hard links to a checkpoint that the training loop wrote: its own retention cannot delete them."""

import os
from pathlib import Path

from trimtab.state.checkpoints.manifest import list_files


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
