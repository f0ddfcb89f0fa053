"""A CheckReport for a terminal: the worst first, a summary last."""

from collections import defaultdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.checks.report import CheckReport, RuleResult
from trimtab.checks.rule import Level, Shown
from trimtab.core.text import counted, printable

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.ADVICE: "cyan"}


def check_view(report: CheckReport, *, is_verbose: bool = False) -> RenderableType:
    """Return the report for a terminal.

    `is_verbose` adds the ids of the rules, what passed, and what could not be checked.
    """
    heading = Text(printable(report.source), style="bold")
    parts: list[RenderableType] = [heading.append(f"  {report.format}", style="not bold")]
    parts += [_dim(f"note: {note}") for note in report.notes]
    for result in report.findings:
        parts += [Text(), _finding(result, with_id=is_verbose)]
    parts.append(Text())
    if is_verbose:
        parts += [_passed(report), Text(), *_not_run(report)]
    if report.plan.rollback is not None:
        parts.append(_dim(f"rollback: at worst {report.plan.rollback}"))
    if (base := report.plan.mup_base_width) is not None:
        parts.append(_dim(_mup(base, report.plan.width)))
    if report.off:
        parts.append(_dim(f"switched off: {', '.join(report.off)}"))
    if report.changed:
        text = f"not restored: {', '.join(report.changed)}; please report this"
        parts.append(Text(text, style="bold red"))
    parts.append(_summary(report, is_verbose=is_verbose))
    return Group(*parts)


def _mup(base: int, width: int | None) -> str:
    """Return what muP means for this plan."""
    of_this = "base / width times it"
    if width is not None:
        of_this = f"{base / width:.3g} times it at width {width:,}"
    return (
        f"muP: the rate is that of width {base:,}; hidden matrices train at {of_this}, so that a "
        "rate tuned on a narrow model holds for a wide one"
    )


def _dim(text: str) -> Text:
    return Text(printable(text), style="dim")


def _grid() -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=7)
    table.add_column(overflow="fold")
    return table


def _finding(result: RuleResult, *, with_id: bool) -> Table:
    """Return what is wrong, why it does harm, how to fix it, who found it."""
    rule, level = result.rule, result.level or Level.ADVICE
    table = _grid()
    title = Text(f"{rule.id}  {rule.title}" if with_id else rule.title, style="bold")
    table.add_row(Text(level.name.lower(), style=_STYLES[level]), title)
    table.add_row("", Text(printable(result.what)))
    table.add_row(_dim("why"), _dim(rule.mechanism))
    for line in result.fix:
        place = Text(f"line {line.line}: " if line.line else "add: ")
        table.add_row(Text("fix", style="green"), place.append(printable(line.text), "green"))
    if result.how:
        table.add_row(Text("fix", style="green"), Text(printable(result.how)))
    proof = f" ({rule.shown})" if rule.shown is Shown.LAB else ""
    table.add_row(_dim("source"), _dim(rule.source + proof))
    return table


def _passed(report: CheckReport) -> Table:
    table = _grid()
    for result in report.passed:
        rule = result.rule
        text = f"{rule.id}  {printable(result.what) or rule.title + ': no'}"
        table.add_row(Text("passed", style="green"), Text(text))
        if rule.cannot_see:
            table.add_row("", _dim(f"       does not see: {rule.cannot_see}"))
    return table


def _not_run(report: CheckReport) -> list[Text]:
    """Return the rules that did not run, by the settings that they need and by other reasons."""
    needed: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for result in report.not_run:
        if result.needs:
            needed[", ".join(sorted(result.needs))].append(result.rule.id)
        else:
            reasons[result.reason].append(result.rule.id)
    lines = []
    if needed:
        text = "; ".join(f"{' '.join(ids)} needs {names}" for names, ids in needed.items())
        lines.append(_dim(f"not checked (add by --set): {text}"))
    if reasons:
        text = "; ".join(f"{' '.join(ids)}: {reason}" for reason, ids in reasons.items())
        lines.append(_dim(f"not checked: {text}"))
    return lines


def _summary(report: CheckReport, *, is_verbose: bool) -> Text:
    ran = f"{len(report.results) - len(report.not_run)} rules ran, {len(report.not_run)} could not"
    if report.seconds:
        ran += f", {report.seconds:.0f} s"
    if report.not_run and not is_verbose:
        ran += " (--verbose)"
    errors, warnings, advice = (report.count(level) for level in reversed(Level))
    if not errors + warnings + advice:
        return Text(f"Nothing found; {ran}.", style="bold green")
    counts = ", ".join(
        (counted(errors, "error"), counted(warnings, "warning"), counted(advice, "suggestion"))
    )
    worst = next(iter(report.findings)).level or Level.ADVICE
    return Text(f"{counts}; {ran}.", style=_STYLES[worst])
