"""The result of `trimtab preflight` for a terminal: the worst first, a summary last."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.checks.objects.definition import Seen
from trimtab.checks.objects.report import CheckResult, PreflightReport
from trimtab.checks.rule import Level
from trimtab.checks.view import finding_view, objections_view, summary_line
from trimtab.report.escaping import printable


def preflight_view(report: PreflightReport, *, is_verbose: bool = False) -> RenderableType:
    """The result; `is_verbose` adds what passed, with its numbers."""
    parts: list[RenderableType] = [Text(printable(report.subject), style="bold")]
    for result in report.findings:
        parts += [Text(), _finding(result)]
    if report.rules is None:
        parts.append(Text("note: no rule of `trimtab check` could read these objects", style="dim"))
    else:
        parts += objections_view(report.rules)
        parts += [Text(f"note: {note}", style="dim") for note in report.rules.reading.notes]
    parts.append(Text())
    if is_verbose:
        parts += [_table(report), Text()]
    if report.not_looked:
        parts.append(_not_looked(report))
    if report.off:
        parts.append(Text(f"switched off: {', '.join(report.off)}", style="dim"))
    if report.changed:
        text = f"not put back as it was: {', '.join(report.changed)}; please report this"
        parts.append(Text(text, style="bold red"))
    parts.append(_summary(report))
    return Group(*parts)


def _finding(result: CheckResult) -> Table:
    check, seen = result.check, result.seen or Seen("")
    return finding_view(
        level=seen.level or Level.ADVICE,
        title=f"{check.id}  {check.title}",
        what=seen.what,
        mechanism=check.mechanism,
        fixes=[Text(printable(seen.fix))],
        source=check.source,
    )


def _table(report: PreflightReport) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=7)
    table.add_column(overflow="fold")
    for result in report.passed:
        seen = "" if result.seen is None else result.seen.what
        table.add_row(Text("passed", style="green"), Text(f"{result.check.id}  {printable(seen)}"))
        blind = f"       does not see: {result.check.cannot_see}"
        table.add_row("", Text(blind, style="dim"))
    return table


def _not_looked(report: PreflightReport) -> Text:
    """The checks that could not look, by the reason."""
    groups: dict[str, list[str]] = {}
    for result in report.not_looked:
        groups.setdefault(result.reason, []).append(result.check.id)
    lines = (f"{' '.join(ids)}: {printable(reason)}" for reason, ids in groups.items())
    return Text("not looked at: " + "; ".join(lines), style="dim")


def _summary(report: PreflightReport) -> Text:
    looked = len(report.results) - len(report.not_looked)
    rules = 0 if report.rules is None else report.rules.checked
    rest = f"{looked} checks and {rules} rules ran, {len(report.not_looked)} checks could not look"
    return summary_line(report.count, f"{rest}, {report.seconds:.0f} s")
