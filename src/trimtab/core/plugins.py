"""Plug-ins: detectors and readers that other packages provide by entry points.

    [project.entry-points."trimtab.detectors"]
    eval_gap = "my_package.eval_gap:EvalGap"        # a class, or anything that makes a detector

    [project.entry-points."trimtab.readers"]
    my_format = "my_package.my_format:MyReader"

A plug-in that fails to load is left out and reported in one line; trimtab goes on without it.
"""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

DETECTORS = "trimtab.detectors"
READERS = "trimtab.readers"
GROUPS = (DETECTORS, READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point of an installed package; nothing of it is imported yet."""

    group: str
    """The extension point: DETECTORS or READERS."""
    name: str
    package: str
    """The distribution that provides it, with its version: "my-package 1.2"."""
    entry_point: EntryPoint

    def __str__(self) -> str:
        return f"{self.name} ({self.package})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugins:
    """The plug-ins of one group that loaded, and a line for each that did not."""

    objects: tuple[Any, ...]
    """A new detector or reader of each plug-in."""
    packages: dict[str, str]
    """The package of each object, by the object's name."""
    failures: tuple[str, ...]


def installed_plugins(group: str) -> tuple[Plugin, ...]:
    """The plug-ins of installed packages, by name, without importing any of them."""
    found = [
        Plugin(
            group=group,
            name=entry.name,
            package=f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown package",
            entry_point=entry,
        )
        for entry in entry_points(group=group)
    ]
    # A package may be found twice, as on a path that names its folder twice.
    return tuple(dict.fromkeys(sorted(found, key=str)))


def load_plugins(group: str) -> LoadedPlugins:
    """Import every plug-in of a group and make one object of each."""
    objects: list[Any] = []
    packages: dict[str, str] = {}
    failures: list[str] = []
    for plugin in installed_plugins(group):
        try:
            made = plugin.entry_point.load()
            made = made() if callable(made) else made
            name = str(made.name)
        except (Exception, SystemExit) as error:  # foreign code: anything may happen
            reason = f"{type(error).__name__}: {error}"
            failures.append(f"plug-in {plugin} failed to load and is left out: {reason}")
        else:
            objects.append(made)
            packages[name] = plugin.package
    return LoadedPlugins(objects=tuple(objects), packages=packages, failures=tuple(failures))
