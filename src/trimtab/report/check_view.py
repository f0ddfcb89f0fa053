"""The result of `trimtab check` for a terminal and as JSON: the worst first, a summary last."""

from collections import defaultdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.check.examine import Examination, Objection
from trimtab.check.rule import Level, Shown
from trimtab.core.jsonable import to_jsonable
from trimtab.report.escaping import printable

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.ADVICE: "cyan"}


def check_view(found: Examination) -> RenderableType:
    """The result for a terminal."""
    parts: list[RenderableType] = [_heading(found)]
    parts += [Text(f"note: {printable(note)}", style="dim") for note in found.reading.notes]
    for objection in found.objections:
        parts += [Text(), _objection(objection)]
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
    table = Table.grid(padding=(0, 1))
    table.add_column(width=7)
    table.add_column(overflow="fold")
    level = Text(rule.level.name.lower(), style=_STYLES[rule.level])
    table.add_row(level, Text(f"{rule.id}  {rule.title}", style="bold"))
    table.add_row("", Text(printable(objection.what)))
    table.add_row(Text("why", style="dim"), Text(rule.mechanism, style="dim"))
    for line in objection.fix:
        place = f"line {line.line}: " if line.line else "add: "
        table.add_row(Text("fix", style="green"), Text(place).append(printable(line.text), "green"))
    if objection.how:
        table.add_row(Text("fix", style="green"), Text(printable(objection.how)))
    proof = f" ({rule.shown})" if rule.shown is Shown.LAB else ""
    table.add_row(Text("source", style="dim"), Text(rule.source + proof, style="dim"))
    return table


def _unchecked(found: Examination) -> Text:
    """The rules that did not run, by the settings that they need."""
    groups: dict[str, list[str]] = defaultdict(list)
    for skipped in found.unchecked:
        groups[", ".join(sorted(skipped.needs))].append(skipped.rule.id)
    needed = "; ".join(f"{' '.join(ids)} needs {needs}" for needs, ids in groups.items())
    return Text(f"not checked (add by --set): {needed}", style="dim")


def _summary(found: Examination) -> Text:
    errors, warnings, advice = (
        found.count(level) for level in (Level.ERROR, Level.WARNING, Level.ADVICE)
    )
    rest = f"{found.checked} rules ran, {len(found.unchecked)} need more settings"
    if not found.objections:
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
        "findings": [
            {
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
            for objection in found.objections
        ],
        "not_checked": [
            {"id": skipped.rule.id, "needs": list(skipped.needs)} for skipped in found.unchecked
        ],
        "checked": found.checked,
        "off": list(found.off),
        "rollback": to_jsonable(found.rollback),
        "plan": {name: value for name, value in plan.items() if value is not None},
    }
