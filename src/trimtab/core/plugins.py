"""Loads what other installed packages offer to trimtab by entry points.

A plug-in that cannot be loaded never stops trimtab: it is reported in one sentence and left out.
"""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

READERS = "trimtab.readers"
"""The group of log readers (`core/reader.py`)."""


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


def load_plugins(group: str) -> list[Plugin]:
    """Every plug-in of a group, sorted by name; check `failure` before using `object`."""
    found = sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry)))
    return [_load(entry, group) for entry in found]


def describe_error(error: BaseException) -> str:
    """The type and the message of an error, in one line for a sentence."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _load(entry: EntryPoint, group: str) -> Plugin:
    package = _package(entry)
    version = entry.dist.version if entry.dist else "unknown"
    try:
        loaded = entry.load()
    except Exception as error:
        failure = (
            f"Plug-in {entry.name!r} ({group}) of {package} {version} could not be loaded "
            f"and is left out: {describe_error(error)}."
        )
        return Plugin(name=entry.name, package=package, version=version, failure=failure)
    return Plugin(name=entry.name, package=package, version=version, object=loaded)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown package"
