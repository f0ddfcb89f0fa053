"""The catalogue of rules, in the order of their ids, and how a rule is run.

Rules on configs need no torch; rules on objects are loaded when they are asked for.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import MappingProxyType, ModuleType

from trimtab.checks.formats.reading import ConfigReading, FixLine
from trimtab.checks.plan import DETERMINED_BY, TrainingPlan
from trimtab.checks.report import CheckReport, RuleResult
from trimtab.checks.rule import CheckRule, Fault, NotMeasured
from trimtab.checks.rules import architecture, operations, optimizer, precision, schedule
from trimtab.core.errors import ConfigError
from trimtab.core.rules import Missing


def _collect(*modules: ModuleType) -> Mapping[str, CheckRule]:
    # A rule is found because it stands in a module: there is no list that could miss one.
    found = [value for module in modules for value in vars(module).values()]
    rules = [value for value in found if isinstance(value, CheckRule)]
    return MappingProxyType({rule.id: rule for rule in sorted(rules, key=lambda rule: rule.id)})


PLAN_RULES = _collect(optimizer, schedule, precision, architecture, operations)
"""Every rule on a config by its id."""


@cache
def object_rules() -> Mapping[str, CheckRule]:
    """Return every rule on the objects of a run by its id. Needs torch."""
    from trimtab.checks.objects.rules import first_steps, loss, optimizer

    return _collect(first_steps, optimizer, loss)


def rule_ids(names: Iterable[str]) -> frozenset[str]:
    """Return ids as they were given, in any case; raise ConfigError for one that no rule has."""
    ids = frozenset(name.strip().upper() for name in names)
    catalogues = [PLAN_RULES]
    if not ids <= PLAN_RULES.keys():
        with suppress(ModuleNotFoundError):  # without torch there are no rules on objects
            catalogues.append(object_rules())
    unknown = sorted(ids.difference(*catalogues))
    if unknown:
        known = " and ".join(f"{min(rules)} to {max(rules)}" for rules in catalogues)
        raise ConfigError(f"no rule {', '.join(unknown)}; rules are {known}")
    return ids


def run_rule(rule: CheckRule, subject: object, reading: ConfigReading | None = None) -> RuleResult:
    """Run a rule on a plan or on measurements; `reading` is the config that the plan is from."""
    try:
        found = rule.run(subject)
    except NotMeasured as reason:
        return RuleResult(rule=rule, reason=str(reason))
    if isinstance(found, Missing):
        return RuleResult(rule=rule, needs=found.names)
    if not isinstance(found, Fault):
        return RuleResult(rule=rule, what=found or "")
    written = [] if reading is None else [reading.write(*part) for part in found.fix.items()]
    return RuleResult(
        rule=rule,
        level=rule.level if found.level is None else found.level,
        what=found.what,
        fix=tuple(part for part in written if isinstance(part, FixLine)),
        how="; ".join(part for part in (found.how, *written) if part and isinstance(part, str)),
    )


def check_plan(reading: ConfigReading, *, off: Iterable[str] = ()) -> CheckReport:
    """Run every rule on a config, except those that are switched off."""
    plan, skipped = reading.plan, rule_ids((*off, *reading.off))
    rules = [r for r in PLAN_RULES.values() if r.id not in skipped and r.concerns(plan)]
    results = [run_rule(rule, plan, reading) for rule in rules]
    return CheckReport(
        source=reading.source,
        format=reading.dialect.name,
        notes=reading.notes,
        plan=plan,
        results=tuple(replace(r, needs=_unknown_settings(r.needs, plan)) for r in results),
        off=tuple(sorted(skipped)),
    )


def _unknown_settings(names: tuple[str, ...], plan: TrainingPlan) -> tuple[str, ...]:
    """Return the settings that must be given for these inputs to be known."""
    settings = dict.fromkeys(
        setting for name in names for setting in DETERMINED_BY.get(name, (name,))
    )
    unknown = tuple(setting for setting in settings if getattr(plan, setting) is None)
    # Everything may be set, but a rate of 0 or less makes no curve.
    return unknown or (("lr",) if names else ())
