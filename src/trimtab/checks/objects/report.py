"""PreflightReport: what every check saw, and what was left open."""

from dataclasses import dataclass
from typing import Any

from trimtab.checks.examine import Examination
from trimtab.checks.objects.definition import PreflightCheck, Seen
from trimtab.checks.rule import Level
from trimtab.checks.view import objection_to_dict


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check, and what became of it."""

    check: PreflightCheck
    seen: Seen | None
    """None if the check could not look."""
    reason: str = ""
    """Why it could not."""
    is_broken: bool = False
    """Whether an error stopped it, in the user's code or in ours."""

    @property
    def level(self) -> Level | None:
        """How serious the finding is; None if there is none."""
        return None if self.seen is None else self.seen.level


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The results of a preflight."""

    subject: str
    """The model, in a few words."""
    results: tuple[CheckResult, ...]
    """In the order of ids."""
    rules: Examination | None
    """The rules of `trimtab check` on the same objects; None if they could not be read."""
    changed: tuple[str, ...]
    """What could not be put back as it was; empty unless something went wrong."""
    off: tuple[str, ...]
    """Checks and rules that were switched off."""
    seconds: float

    @property
    def findings(self) -> tuple[CheckResult, ...]:
        """The problems that checks found, the worst first."""
        found = [result for result in self.results if result.level is not None]
        return tuple(sorted(found, key=lambda r: (-int(r.level or 0), r.check.id)))

    @property
    def passed(self) -> tuple[CheckResult, ...]:
        """Checks that looked and found nothing."""
        return tuple(r for r in self.results if r.seen is not None and r.level is None)

    @property
    def not_looked(self) -> tuple[CheckResult, ...]:
        """Checks that could not look."""
        return tuple(result for result in self.results if result.seen is None)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all findings, of checks and of rules."""
        objections = () if self.rules is None else self.rules.objections
        return tuple(r.check.id for r in self.findings) + tuple(o.rule.id for o in objections)

    def count(self, level: Level) -> int:
        """How many findings there are of a level, rules included."""
        own = sum(result.level is level for result in self.results)
        return own + (0 if self.rules is None else self.rules.count(level))

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        rules = () if self.rules is None else self.rules.objections
        return {
            "subject": self.subject,
            "findings": [
                *(_finding(result) for result in self.findings),
                *(objection_to_dict(objection) for objection in rules),
            ],
            "passed": [{"id": r.check.id, "what": r.seen.what} for r in self.passed if r.seen],
            "not_looked_at": [
                {"id": r.check.id, "reason": r.reason, "broken": r.is_broken}
                for r in self.not_looked
            ],
            "rules_checked": 0 if self.rules is None else self.rules.checked,
            "changed": list(self.changed),
            "off": list(self.off),
            "seconds": round(self.seconds, 2),
        }


def _finding(result: CheckResult) -> dict[str, Any]:
    check, seen = result.check, result.seen or Seen("")
    return {
        "id": check.id,
        "level": "" if seen.level is None else seen.level.name.lower(),
        "title": check.title,
        "what": seen.what,
        "why": check.mechanism,
        "how": seen.fix,
        "cannot_see": check.cannot_see,
        "source": check.source,
    }
