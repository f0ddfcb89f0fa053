"""Detectors from outside this package: passed as an argument, or installed as plug-ins.

A plug-in that fails to load, is no detector, or takes the name of another detector is left out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.core.plugins import DETECTORS, Plugin, describe_error, load_plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDetectors:
    """The detectors that loaded, where they come from, and those that failed."""

    detectors: tuple[Detector, ...]
    packages: dict[str, str]
    """The package of each detector, by the detector's name."""
    failures: tuple[str, ...]
    """One sentence for each plug-in that was left out."""


def load_user_detectors(given: Sequence[Detector], taken: Collection[str]) -> UserDetectors:
    """The detectors that were passed, then a new one of each installed plug-in.

    Args:
        given: Detectors that were passed; ConfigError if one of them cannot be used.
        taken: The names of the detectors of the rule set.
    """
    packages = {}
    names = set(taken)
    for detector in given:
        if not isinstance(detector, Detector):
            raise ConfigError(f"{detector!r} is not a trimtab.core.detector.Detector")
        if detector.name in names:
            raise ConfigError(f"there is a detector {detector.name!r} already; rename yours")
        names.add(detector.name)
        packages[detector.name] = type(detector).__module__
    loaded, failures = [], []
    for plugin in load_plugins(DETECTORS):
        made = _make(plugin, names)
        if isinstance(made, str):
            failures.append(made)
        else:
            names.add(made.name)
            loaded.append(made)
            packages[made.name] = f"{plugin.package} {plugin.version}"
    return UserDetectors(detectors=(*given, *loaded), packages=packages, failures=tuple(failures))


def _make(plugin: Plugin, taken: Collection[str]) -> Detector | str:
    """A new detector of a plug-in, or why there is none."""
    if plugin.failure is not None:
        return plugin.failure
    try:
        made = plugin.object()  # one per run: detectors have a state
    except Exception as error:
        return _left_out(plugin, describe_error(error))
    if not isinstance(made, Detector):
        return _left_out(plugin, "it is not a trimtab.core.detector.Detector")
    if not isinstance(getattr(made, "name", None), str):
        return _left_out(plugin, "it has no name")
    if made.name in taken:
        return _left_out(plugin, f"there is a detector {made.name!r} already")
    return made


def _left_out(plugin: Plugin, reason: str) -> str:
    return (
        f"Plug-in {plugin.name!r} ({DETECTORS}) of {plugin.package} {plugin.version} is left out: "
        f"{reason}."
    )
