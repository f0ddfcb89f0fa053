"""Checkpointer: how a run's state is written to a folder and read back. An extension point.

Trimtab comes with one for torch's distributed checkpoints (`trimtab.state.checkpoints.content`). A
different one is any object with these two methods: passed as `Checkpoints(checkpointer=...)`, or
chosen there by the name of an entry point of the group `trimtab.checkpointers` or by an import path
such as `package.module:Name`.

Checksums, the atomic commit, verdicts and retention are trimtab's part: a checkpointer only writes
and reads files.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trimtab.core.plugins import CHECKPOINTERS, find_plugin


@runtime_checkable
class Checkpointer(Protocol):
    """Writes and reads one checkpoint. Both methods are called on all ranks at the same step.

    One that can also write while training goes on has a third, `save_in_background(folder, state)`:
    it copies the state and returns a `concurrent.futures.Future`, done when all of this rank is
    written.
    """

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write `state`, a nested dict of tensors and plain values, into an empty folder."""
        ...

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read the folder into the tensors of `state`, and replace its plain values."""
        ...


def find_checkpointer(name: str) -> Checkpointer:
    """Make the checkpointer of an installed package, or of an import path; raises ConfigError."""
    return find_plugin(
        name,
        CHECKPOINTERS,
        Checkpointer,  # type: ignore[type-abstract]
        needs="save or load (core/checkpointer.py)",
    )
