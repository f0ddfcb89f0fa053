"""All tests, in the order of their ids: each idea is a file, each test a function in it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType

from trimtab.check.catalogue import RULES
from trimtab.core.errors import ConfigError
from trimtab.preflight.definition import PreflightTest
from trimtab.preflight.tests import (
    causality,
    initialisation,
    loader,
    loss,
    optimizer,
    precision,
    schedule,
    signal,
)

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


def _collect() -> Mapping[str, PreflightTest]:
    tests = [
        value for idea in IDEAS for value in vars(idea).values() if isinstance(value, PreflightTest)
    ]
    return MappingProxyType({test.id: test for test in sorted(tests, key=lambda test: test.id)})


TESTS = _collect()
"""Every test by its id."""


def split_ids(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Ids of tests and of rules, in any case; raises ConfigError for one that is neither."""
    ids = frozenset(name.strip().upper() for name in names)
    unknown = sorted(ids - TESTS.keys() - RULES.keys())
    if unknown:
        raise ConfigError(
            f"no test {', '.join(unknown)}; docs/preflight.md lists the tests, docs/check.md the "
            "rules"
        )
    return ids & TESTS.keys(), ids & RULES.keys()
