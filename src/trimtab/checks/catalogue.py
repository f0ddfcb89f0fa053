"""All rules, in the order of their ids: each family is a file, each rule a function in it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType

from trimtab.checks.rule import ConfigRule
from trimtab.checks.rules import (
    architecture,
    decay,
    operations,
    optimizer,
    precision,
    schedule,
    warmup,
)
from trimtab.core.errors import ConfigError

FAMILIES: tuple[ModuleType, ...] = (
    optimizer,
    decay,
    schedule,
    warmup,
    precision,
    architecture,
    operations,
)


def _collect() -> Mapping[str, ConfigRule]:
    rules = [
        value
        for family in FAMILIES
        for value in vars(family).values()
        if isinstance(value, ConfigRule)
    ]
    return MappingProxyType({rule.id: rule for rule in sorted(rules, key=lambda rule: rule.id)})


RULES = _collect()
"""Every rule by its id."""


def rule_ids(names: Iterable[str]) -> frozenset[str]:
    """The ids as they were given, in any case; raises ConfigError for one that is no rule."""
    ids = frozenset(name.strip().upper() for name in names)
    unknown = sorted(ids - RULES.keys())
    if unknown:
        raise ConfigError(f"no rule {', '.join(unknown)}; rules are {min(RULES)} to {max(RULES)}")
    return ids
