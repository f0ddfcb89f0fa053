"""Checkpointer: how a run's state is written to a folder and read back. An extension point.

Trimtab comes with one for torch's distributed checkpoints (`trimtab.state.checkpoints.dcp`). A
different one is any object with these two methods: passed as `Checkpoints(checkpointer=...)`, or
offered by an installed package as an entry point of the group `trimtab.checkpointers` and chosen
by its name.

Checksums, the atomic commit, verdicts and retention are trimtab's part: a checkpointer only writes
and reads files.
"""

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trimtab.core.errors import ConfigError
from trimtab.core.plugins import CHECKPOINTERS, load_plugins


@runtime_checkable
class Checkpointer(Protocol):
    """Writes and reads one checkpoint. Both methods are called on all ranks at the same step."""

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write `state`, a nested dict of tensors and plain values, into an empty folder."""
        ...

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Read the folder into the tensors of `state`, and replace its plain values."""
        ...


@runtime_checkable
class BackgroundCheckpointer(Checkpointer, Protocol):
    """A checkpointer that can also write while training goes on."""

    def save_in_background(self, folder: Path, state: dict[str, Any]) -> "Future[Any]":
        """Copy the state and return; the future is done when all of this rank is written."""
        ...


def find_checkpointer(name: str) -> Checkpointer:
    """The installed checkpointer of that name; raises ConfigError if there is none."""
    plugins = load_plugins(CHECKPOINTERS)
    for plugin in plugins:
        if plugin.name == name:
            if plugin.failure is not None:
                raise ConfigError(plugin.failure)
            made = plugin.object() if callable(plugin.object) else plugin.object
            if not isinstance(made, Checkpointer):
                raise ConfigError(f"{plugin} has no save and load (core/checkpointer.py)")
            return made
    known = ", ".join(plugin.name for plugin in plugins) or "none"
    raise ConfigError(f"no checkpointer {name!r} is installed; installed: {known}")
