"""All checks, in the order of their ids: each idea is a file, each check a function in it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType

from trimtab.checks.catalogue import RULES
from trimtab.checks.objects.checks import (
    causality,
    initialisation,
    loader,
    loss,
    optimizer,
    precision,
    schedule,
    signal,
)
from trimtab.checks.objects.definition import PreflightCheck
from trimtab.core.errors import ConfigError

IDEAS: tuple[ModuleType, ...] = (
    initialisation,
    signal,
    precision,
    optimizer,
    schedule,
    loss,
    causality,
    loader,
)


def _collect() -> Mapping[str, PreflightCheck]:
    found = [part for idea in IDEAS for part in vars(idea).values()]
    checks = [part for part in found if isinstance(part, PreflightCheck)]
    return MappingProxyType({part.id: part for part in sorted(checks, key=lambda part: part.id)})


CHECKS = _collect()
"""Every check by its id."""


def split_ids(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of checks and of rules, in any case; raises ConfigError for one that is neither."""
    ids = frozenset(name.strip().upper() for name in names)
    unknown = sorted(ids - CHECKS.keys() - RULES.keys())
    if unknown:
        raise ConfigError(
            f"no check {', '.join(unknown)}; checks are {min(CHECKS)} to {max(CHECKS)}, rules of "
            f"configs {min(RULES)} to {max(RULES)}"
        )
    return ids & CHECKS.keys(), ids & RULES.keys()
