"""Loads what other installed packages offer to trimtab by entry points.

A plug-in that cannot be loaded never stops trimtab: it is reported in one sentence and left out.
"""

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

DETECTORS = "trimtab.detectors"
"""The group of detectors (`core/detector.py`)."""

READERS = "trimtab.readers"
"""The group of log readers (`core/reader.py`)."""

CHECKPOINTERS = "trimtab.checkpointers"
"""The group of checkpointers (`core/checkpointer.py`)."""

SINKS = "trimtab.sinks"
"""The group of sinks (`core/sink.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point of an installed package, loaded or failed."""

    name: str
    """The name of the entry point."""
    package: str
    """The package that offers it."""
    version: str
    object: Any = None
    """What the entry point refers to; None if it failed to load."""
    failure: str | None = None
    """Why it failed to load, in one sentence; None if it loaded."""

    def __str__(self) -> str:
        return f"{self.name} ({self.package} {self.version})"


def list_plugins(group: str) -> list[Plugin]:
    """Every plug-in of a group, sorted by name, without loading any."""
    return [_plugin(entry) for entry in _entry_points(group)]


def load_plugins(group: str) -> list[Plugin]:
    """Every plug-in of a group, sorted by name; check `failure` before using `object`."""
    return [_load(entry, group) for entry in _entry_points(group)]


def describe_error(error: BaseException) -> str:
    """The type and the message of an error, in one line for a sentence."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _entry_points(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry)))


def _plugin(entry: EntryPoint) -> Plugin:
    version = entry.dist.version if entry.dist else "unknown"
    return Plugin(name=entry.name, package=_package(entry), version=version)


def _load(entry: EntryPoint, group: str) -> Plugin:
    plugin = _plugin(entry)
    try:
        return replace(plugin, object=entry.load())
    except Exception as error:
        failure = (
            f"Plug-in {entry.name!r} ({group}) of {plugin.package} {plugin.version} could not be "
            f"loaded and is left out: {describe_error(error)}."
        )
        return replace(plugin, failure=failure)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown package"
