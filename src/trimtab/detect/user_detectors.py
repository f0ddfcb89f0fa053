"""Detectors from outside this package: passed as an argument, or installed as plug-ins.

A plug-in that fails to load, is no detector, or takes the name of another detector is left out.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trimtab.core.detector import Detector
from trimtab.core.errors import ConfigError
from trimtab.core.plugins import DETECTORS, load_plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDetectors:
    """The detectors that loaded, where they come from, and those that failed."""

    detectors: tuple[Detector, ...]
    packages: dict[str, str]
    """The package of each detector, by the detector's name."""
    failures: tuple[str, ...]
    """One sentence for each plug-in that was left out."""


def load_user_detectors(given: Sequence[Detector], taken: Collection[str]) -> UserDetectors:
    """Return the detectors that were passed, then a new one of each installed plug-in.

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
    made, failures = load_plugins(
        DETECTORS,
        Detector,
        needs="the base class trimtab.core.detector.Detector, or a name",
        taken=names,
    )
    packages |= {detector.name: plugin.package for plugin, detector in made.items()}
    return UserDetectors(
        detectors=(*given, *made.values()), packages=packages, failures=tuple(failures)
    )
