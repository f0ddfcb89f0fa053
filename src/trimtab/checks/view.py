"""The result of `trimtab check` for a terminal and as JSON: the worst first, a summary last."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.checks.examine import Examination, Objection
from trimtab.checks.rule import Level, Shown
from trimtab.core.jsonable import to_jsonable
from trimtab.report.escaping import printable

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.ADVICE: "cyan"}


def check_view(found: Examination) -> RenderableType:
    """The result for a terminal."""
    parts: list[RenderableType] = [_heading(found)]
    parts += [Text(f"note: {printable(note)}", style="dim") for note in found.reading.notes]
    parts += objections_view(found)
    parts.append(Text())
    if found.rollback is not None:
        parts.append(Text(f"rollback: at worst {found.rollback}", style="dim"))
    if found.unchecked:
        parts.append(_unchecked(found))
    if found.off:
        parts.append(Text(f"switched off: {', '.join(found.off)}", style="dim"))
    parts.append(_summary(found))
    return Group(*parts)


def _heading(found: Examination) -> Text:
    text = Text(printable(found.reading.source), style="bold")
    return text.append(f"  {found.reading.dialect.name}", style="not bold")


def _objection(objection: Objection) -> Table:
    rule = objection.rule
    fixes = [
        Text(f"line {line.line}: " if line.line else "add: ").append(printable(line.text), "green")
        for line in objection.fix
    ]
    if objection.how:
        fixes.append(Text(printable(objection.how)))
    proof = f" ({rule.shown})" if rule.shown is Shown.LAB else ""
    return finding_view(
        level=rule.level,
        title=f"{rule.id}  {rule.title}",
        what=objection.what,
        mechanism=rule.mechanism,
        fixes=fixes,
        source=rule.source + proof,
    )


def finding_view(
    *, level: Level, title: str, what: str, mechanism: str, fixes: Sequence[Text], source: str
) -> Table:
    """One finding: what is wrong, why it does harm, how to fix it, who found it."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=7)
    table.add_column(overflow="fold")
    table.add_row(Text(level.name.lower(), style=_STYLES[level]), Text(title, style="bold"))
    table.add_row("", Text(printable(what)))
    table.add_row(Text("why", style="dim"), Text(mechanism, style="dim"))
    for fix in fixes:
        table.add_row(Text("fix", style="green"), fix)
    table.add_row(Text("source", style="dim"), Text(source, style="dim"))
    return table


def objections_view(found: Examination) -> list[RenderableType]:
    """The objections, each with a line before it."""
    return [part for objection in found.objections for part in (Text(), _objection(objection))]


def _unchecked(found: Examination) -> Text:
    """The rules that did not run, by the settings that they need."""
    groups: dict[str, list[str]] = defaultdict(list)
    for skipped in found.unchecked:
        groups[", ".join(sorted(skipped.needs))].append(skipped.rule.id)
    needed = "; ".join(f"{' '.join(ids)} needs {needs}" for needs, ids in groups.items())
    return Text(f"not checked (add by --set): {needed}", style="dim")


def _summary(found: Examination) -> Text:
    rest = f"{found.checked} rules ran, {len(found.unchecked)} need more settings"
    return summary_line(found.count, rest)


def summary_line(count: Callable[[Level], int], rest: str) -> Text:
    """The last line: how many findings of each level, and what else there is to know."""
    errors, warnings, advice = (
        count(level) for level in (Level.ERROR, Level.WARNING, Level.ADVICE)
    )
    if not errors + warnings + advice:
        return Text(f"Nothing found; {rest}.", style="bold green")
    style = "bold red" if errors else "bold yellow" if warnings else "bold cyan"
    counts = f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}, {advice} advice"
    return Text(f"{counts}; {rest}.", style=style)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def check_to_dict(found: Examination) -> dict[str, Any]:
    """The result as JSON values."""
    plan = to_jsonable(found.reading.plan)
    return {
        "source": found.reading.source,
        "format": found.reading.dialect.name,
        "notes": list(found.reading.notes),
        "findings": [objection_to_dict(objection) for objection in found.objections],
        "not_checked": [
            {"id": skipped.rule.id, "needs": list(skipped.needs)} for skipped in found.unchecked
        ],
        "checked": found.checked,
        "off": list(found.off),
        "rollback": to_jsonable(found.rollback),
        "plan": {name: value for name, value in plan.items() if value is not None},
    }


def objection_to_dict(objection: Objection) -> dict[str, Any]:
    """One objection as JSON values."""
    return {
        "id": objection.rule.id,
        "level": objection.rule.level.name.lower(),
        "title": objection.rule.title,
        "what": objection.what,
        "why": objection.rule.mechanism,
        "fix": [to_jsonable(line) for line in objection.fix],
        "how": objection.how,
        "source": objection.rule.source,
        "evidence": objection.rule.shown.value,
    }
