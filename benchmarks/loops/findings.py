"""The findings of findings.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("findings.toml")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One way in which the guard failed."""

    number: int | str
    severity: str
    what: str
    tests: tuple[str, ...]
    """The tests that show it."""


def read_findings() -> tuple[Finding, ...]:
    """All findings, by number."""
    entries = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["finding"]
    return tuple(Finding(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries)
