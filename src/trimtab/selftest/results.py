"""The result of a self-test: one line per check."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "pass"
    FAILED = "FAIL"
    SKIPPED = "skip"
    """This device cannot make the check; the reason says why."""


class CannotCheck(Exception):
    """Raised by a check that this device cannot make."""


class CheckFailed(Exception):
    """Raised by a check that found a broken promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check."""

    name: str
    outcome: Outcome
    reason: str
    """What was compared or counted, or what is wrong."""
    seconds: float

    def line(self) -> str:
        """The line that is printed."""
        return f"{self.outcome.value}  {self.name}: {self.reason} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """All checks on one device."""

    device: str
    device_name: str
    torch: str
    trimtab: str
    checks: tuple[CheckResult, ...]

    @property
    def has_passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome is not Outcome.FAILED for check in self.checks)

    def count(self, outcome: Outcome) -> int:
        """How many checks ended like this."""
        return sum(check.outcome is outcome for check in self.checks)

    def summary(self) -> str:
        """The last line."""
        return (
            f"{self.count(Outcome.PASSED)} passed, {self.count(Outcome.FAILED)} failed, "
            f"{self.count(Outcome.SKIPPED)} skipped on {self.device} ({self.device_name}), "
            f"torch {self.torch}, trimtab {self.trimtab}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "device": self.device,
            "device_name": self.device_name,
            "torch": self.torch,
            "trimtab": self.trimtab,
            "passed": self.has_passed,
            "checks": [
                {
                    "name": check.name,
                    "outcome": check.outcome.name.lower(),
                    "reason": check.reason,
                    "seconds": round(check.seconds, 3),
                }
                for check in self.checks
            ],
        }
