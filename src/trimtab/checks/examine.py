"""Runs the rules on a config: what is wrong with it, and how to fix it."""

from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.checks.catalogue import RULES, rule_ids
from trimtab.checks.config_reading import ConfigReading
from trimtab.checks.plan import DETERMINED_BY, TrainingPlan
from trimtab.checks.rollback import RollbackCost, compute_rollback_cost
from trimtab.checks.rule import ConfigRule, Fault, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class FixLine:
    """One line of a fix, as the user would write it."""

    text: str
    line: int | None
    """Where that setting is now; None if it is not in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """One rule that does not hold, and what to do about it."""

    rule: ConfigRule
    what: str
    fix: tuple[FixLine, ...]
    how: str
    """What to do where the format has no setting for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A rule that was not run."""

    rule: ConfigRule
    needs: tuple[str, ...]
    """The settings that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A config and what the rules found in it."""

    reading: ConfigReading
    objections: tuple[Objection, ...]
    """The worst first."""
    checked: int
    """Rules that were run."""
    unchecked: tuple[Unchecked, ...]
    off: tuple[str, ...]
    """Rules that were switched off."""
    rollback: RollbackCost | None

    def count(self, level: Level) -> int:
        """How many objections there are of a level."""
        return sum(objection.rule.level is level for objection in self.objections)


def examine(reading: ConfigReading, *, off: Iterable[str] = ()) -> Examination:
    """Run every rule on a config, except those that are switched off."""
    skipped = rule_ids(off) | rule_ids(reading.off)
    objections: list[Objection] = []
    unchecked: list[Unchecked] = []
    checked = 0
    for rule in RULES.values():
        if rule.id in skipped or not rule.concerns(reading.plan):
            continue
        missing = rule.missing(reading.plan)
        if missing:
            unchecked.append(Unchecked(rule=rule, needs=_unknown_settings(missing, reading.plan)))
            continue
        checked += 1
        fault = rule.run(reading.plan)
        if fault is not None:
            objections.append(_object(rule, fault, reading))
    objections.sort(key=lambda objection: (-objection.rule.level, objection.rule.id))
    plan = reading.plan
    return Examination(
        reading=reading,
        objections=tuple(objections),
        checked=checked,
        unchecked=tuple(unchecked),
        off=tuple(sorted(skipped)),
        rollback=None
        if plan.checkpoint_steps is None
        else compute_rollback_cost(
            checkpoint_steps=plan.checkpoint_steps,
            detection_steps=plan.detection_steps,
            log_steps=plan.log_steps,
            step_seconds=plan.step_seconds,
            price_per_hour=plan.price_per_hour,
        ),
    )


def _unknown_settings(names: tuple[str, ...], plan: TrainingPlan) -> tuple[str, ...]:
    """The settings that are missing for these inputs to be known."""
    settings = dict.fromkeys(
        setting for name in names for setting in DETERMINED_BY.get(name, (name,))
    )
    unknown = tuple(setting for setting in settings if getattr(plan, setting) is None)
    return unknown or ("lr",)  # everything is set, but a rate of 0 or less makes no curve


def _object(rule: ConfigRule, fault: Fault, reading: ConfigReading) -> Objection:
    lines: list[FixLine] = []
    steps: list[str] = [fault.how] if fault.how else []
    for change in fault.fix:
        text = reading.dialect.spell(change.field, change.value)
        if text is None:
            steps.append(reading.dialect.explain(change.field, change.value))
        else:
            lines.append(FixLine(text=text, line=reading.lines.get(change.field)))
    return Objection(rule=rule, what=fault.what, fix=tuple(lines), how="; ".join(steps))
