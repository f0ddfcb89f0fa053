"""CheckReport: what every rule found in a config or in the objects of a run."""

from dataclasses import dataclass
from typing import Any

from trimtab.checks.formats.reading import FixLine
from trimtab.checks.plan import TrainingPlan
from trimtab.checks.rule import CheckRule, Level
from trimtab.core.jsonable import to_jsonable


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """One rule, and what it found or why it did not run."""

    rule: CheckRule
    level: Level | None = None
    """Of a finding; None if there is none."""
    what: str = ""
    """What is wrong, or what was seen that is as it should be; with the numbers of this run."""
    fix: tuple[FixLine, ...] = ()
    """Settings that fix it, in the syntax of the config."""
    how: str = ""
    """What to do where no setting does it."""
    needs: tuple[str, ...] = ()
    """Settings without which the rule did not run."""
    reason: str = ""
    """Why else it did not run."""
    is_broken: bool = False
    """Whether an error stopped it, in the user's code or in ours."""

    @property
    def has_run(self) -> bool:
        """Whether the rule had all its inputs."""
        return not self.needs and not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Return a finding as JSON values."""
        rule = self.rule
        return {
            "id": rule.id,
            "level": "" if self.level is None else self.level.name.lower(),
            "title": rule.title,
            "what": self.what,
            "why": rule.mechanism,
            "fix": to_jsonable(self.fix),
            "how": self.how,
            "source": rule.source,
            "evidence": rule.shown.value,
            "cannot_see": rule.cannot_see,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """A config, or the objects of a run, and the results of the rules."""

    source: str
    """The file, or the model in a few words."""
    format: str
    """The format of the config; `objects` for objects."""
    notes: tuple[str, ...]
    """What was left out, assumed or not understood, in plain sentences."""
    plan: TrainingPlan
    """The settings; all unknown if the objects have some that no plan can hold."""
    results: tuple[RuleResult, ...]
    """Of all rules that apply and are not switched off, in the order of ids."""
    off: tuple[str, ...]
    """Ids of rules that were switched off."""
    changed: tuple[str, ...] = ()
    """Which of the objects could not be restored; empty unless something went wrong."""
    seconds: float = 0.0

    @property
    def findings(self) -> tuple[RuleResult, ...]:
        """What is wrong, the worst first."""
        found = [result for result in self.results if result.level is not None]
        return tuple(sorted(found, key=lambda result: -int(result.level or 0)))

    @property
    def passed(self) -> tuple[RuleResult, ...]:
        return tuple(r for r in self.results if r.has_run and r.level is None)

    @property
    def not_run(self) -> tuple[RuleResult, ...]:
        return tuple(result for result in self.results if not result.has_run)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(result.rule.id for result in self.findings)

    def count(self, level: Level) -> int:
        return sum(result.level is level for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        plan = to_jsonable(self.plan)
        return {
            "source": self.source,
            "format": self.format,
            "notes": list(self.notes),
            "findings": [result.to_dict() for result in self.findings],
            "passed": [{"id": result.rule.id, "what": result.what} for result in self.passed],
            "not_checked": [
                {
                    "id": result.rule.id,
                    "needs": list(result.needs),
                    "reason": result.reason,
                    "broken": result.is_broken,
                }
                for result in self.not_run
            ],
            "checked": len(self.results) - len(self.not_run),
            "off": list(self.off),
            "rollback": to_jsonable(self.plan.rollback),
            "plan": {name: value for name, value in plan.items() if value is not None},
            "changed": list(self.changed),
            "seconds": round(self.seconds, 2),
        }
