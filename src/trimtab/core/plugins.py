"""The one loader of plug-ins: what other installed packages add to trimtab by entry points.

Two ways to use a group of plug-ins:

    sink = find_plugin("mine", SINKS, Sink, needs="begin, send or close", own=OWN_SINKS)
    made, failures = load_plugins(READERS, Reader, needs="name, description, recognises or read")

`find_plugin` makes the one that a user named: trimtab's own (a table of import paths), one at an
import path such as `package.module:Name`, or an installed one. If that fails, it is an error.
`load_plugins` makes all that are installed. One that fails never stops trimtab: it is left out, and
a sentence says so.

An entry point names a class without required arguments, or a function that makes the object.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, TypeVar

from trimtab.core.errors import ConfigError, TrimtabError

DETECTORS = "trimtab.detectors"
"""The group of detectors (`core/detector.py`)."""

READERS = "trimtab.readers"
"""The group of log readers (`core/run.py`)."""

CHECKPOINTERS = "trimtab.checkpointers"
"""The group of checkpointers (`core/checkpointer.py`)."""

SINKS = "trimtab.sinks"
"""The group of sinks (`core/sink.py`)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of an installed package; it is imported only by `load`."""

    entry: EntryPoint

    @property
    def name(self) -> str:
        """The name of the entry point."""
        return self.entry.name

    @property
    def package(self) -> str:
        """The package that offers it, with its version: "acme-logs 1.2"."""
        dist = self.entry.dist
        return f"{dist.name} {dist.version}" if dist else "an unknown package"

    def load(self) -> Callable[[], Any]:
        """Import the class or function; raises whatever the package raises."""
        made: Callable[[], Any] = self.entry.load()
        return made

    def __str__(self) -> str:
        return f"{self.name} ({self.package})"


def list_plugins(group: str) -> list[Plugin]:
    """Return every installed plug-in of a group, sorted by name, without importing any."""
    plugins = [Plugin(entry) for entry in entry_points(group=group)]
    return sorted(plugins, key=lambda plugin: (plugin.name, plugin.package))


def load_plugins(
    group: str, protocol: type[T], *, needs: str, taken: Collection[str] = ()
) -> tuple[dict[Plugin, T], list[str]]:
    """Make one object of each installed plug-in, and a sentence for each that is left out.

    Args:
        group: The group of entry points.
        protocol: What the objects must be instances of, with a `name`.
        needs: What an object of another type lacks, in words: "name, recognises or read".
        taken: Names that are in use already; no two plug-ins may have the same one.
    """
    made: dict[Plugin, T] = {}
    failures: list[str] = []
    names = set(taken)
    for plugin in list_plugins(group):
        try:
            name, found = _make_named(plugin, protocol, needs)
            if name in names:
                raise _UnusableError(f"there is a {_kind(group)} {name!r} already")
        except Exception as error:  # whatever a stranger's package raises when it is imported
            reason = str(error) if isinstance(error, _UnusableError) else describe_error(error)
            failures.append(
                f"Plug-in {plugin.name!r} ({group}) of {plugin.package} is left out: {reason}."
            )
        else:
            names.add(name)
            made[plugin] = found
    return made, failures


def find_plugin(
    name: str,
    group: str,
    protocol: type[T],
    *,
    needs: str,
    own: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """Make the object of a name: trimtab's own, one at an import path, or an installed one.

    Raises ConfigError if there is none of that name or if it cannot be used; a TrimtabError of the
    plug-in itself is passed on.

    Args:
        name: A name in `own`, an import path such as `package.module:Name`, or the name of an
            installed plug-in. Trimtab's own win over installed ones.
        group: The group of entry points.
        protocol: What the object must be an instance of.
        needs: What an object of another type lacks, in words: "save or load".
        own: The import paths of trimtab's own, by name.
    """
    kind = _kind(group)
    path = own.get(name, name)  # ours first: an installed package cannot replace them
    try:
        factory = _import(path) if ":" in path else _installed(name, group, own).load()
        found = factory()
    except TrimtabError:
        raise
    except Exception as error:
        raise ConfigError(f"the {kind} {name} cannot be loaded: {describe_error(error)}") from error
    if not isinstance(found, protocol):
        raise ConfigError(f"{name} is not a {kind}: it lacks {needs}")
    return found


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error, in one line for a sentence."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class _UnusableError(Exception):
    """A plug-in that loaded, but cannot be used; its message says why."""


def _make_named(plugin: Plugin, protocol: type[T], needs: str) -> tuple[str, T]:
    found = plugin.load()()
    name = getattr(found, "name", None)
    if not isinstance(found, protocol) or not isinstance(name, str):
        raise _UnusableError(f"it lacks {needs}")
    return name, found


def _installed(name: str, group: str, own: Mapping[str, str]) -> Plugin:
    plugins = list_plugins(group)
    for plugin in plugins:
        if plugin.name == name:
            return plugin
    known = ", ".join([*own, *(plugin.name for plugin in plugins)]) or "none: none is installed"
    raise ConfigError(f"there is no {_kind(group)} {name!r}; choose from {known}")


def _import(path: str) -> Callable[[], Any]:
    module, _, attribute = path.partition(":")
    made: Callable[[], Any] = getattr(import_module(module), attribute)
    return made


def _kind(group: str) -> str:
    """Return what a group holds, in the singular: "sink"."""
    return group.rpartition(".")[2].removesuffix("s")
