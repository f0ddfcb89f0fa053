"""`trimtab compare`: how far two runs are apart, from which step on, and whether checks hold."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.options import AsJson, ExitCode, print_json
from trimtab.core.text import counted, printable

if TYPE_CHECKING:
    from trimtab.core.run import Run
    from trimtab.explain.comparison import (
        Check,
        Comparison,
        FirstDifference,
        StateDifference,
        StepWindow,
    )
    from trimtab.report.pages.many_runs import Compared

MAX_DIFFERENCES = 3
"""Signals that are named with their first difference; --json has all of them."""

ROUNDING = 1e-5
"""Share of a value by which two roundings of it differ. Chosen: logs print five or six digits."""


def compare(
    run: Annotated[Path, typer.Argument(help="A run directory or a log of any known format.")],
    base: Annotated[
        Path | None, typer.Argument(help="The run or log to compare it with.", show_default=False)
    ] = None,
    others: Annotated[
        list[Path] | None, typer.Argument(help="More runs to compare with BASE.")
    ] = None,
    signal: Annotated[str, typer.Option(metavar="NAME", help="What to compare.")] = "loss",
    within: Annotated[float, typer.Option(help="The largest mean difference.", min=0.0)] = 0.05,
    largest: Annotated[
        float | None,
        typer.Option("--max", help="The largest value in RUN; BASE is not needed then."),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="FIRST:LAST", help="The steps to compare.", show_default="all")
    ] = ":",
    verify: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Make the checks of this file, as a post-mortem has it."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with charts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare RUN with BASE step by step, and find from where on they differ.

    The comparison is of trailing means over up to 50 common records. RUN is within the tolerance
    if the mean absolute difference is, if the difference does not exceed it at the end, and if at
    no step only one of the values is finite. The first step at which each signal differs at all
    is listed. --max and --verify check RUN itself.

    Example: trimtab compare runs/new runs/base --within 0.02 --window :500

    Exit code: 0 within, 1 not within, 2 usage error, 3 unreadable or no common steps.
    """
    from trimtab.core.errors import ConfigError
    from trimtab.explain.comparison import Check, StepWindow, read_checks

    steps = StepWindow.parse(window, "--window")
    checks = [] if verify is None else read_checks(verify)
    if largest is not None:
        check = Check(signal=signal, first=steps.first, last=steps.last, max=largest)
        checks.append(check)
    if checks:
        passed = _verify(checks, run, base, as_json=as_json)
    elif base is not None:
        pairs = _compare([run, *(others or ())], base, signal, within, steps)
        passed = _show(pairs, steps, as_json=as_json, html=html)
    else:
        raise ConfigError("nothing to compare with: give BASE, --max or --verify")
    raise typer.Exit(ExitCode.CLEAN if passed else ExitCode.FINDINGS)


def _verify(checks: "list[Check]", run: Path, base: Path | None, *, as_json: bool) -> bool:
    """Make the checks and print what was found; return whether all have passed."""
    from trimtab.core.jsonable import to_jsonable
    from trimtab.explain.comparison import apply_check
    from trimtab.source import read_run

    block = read_run(run).block
    other = None if base is None else read_run(base).block
    results = [apply_check(check, block, other) for check in checks]
    if as_json:
        shown = [
            {**to_jsonable(one.check), "passed": one.passed, "found": one.found} for one in results
        ]
        print_json("compare", {"comparisons": [], "checks": shown})
    else:
        for result in results:
            typer.echo(printable(f"{'ok  ' if result.passed else 'FAIL'}  {result.found}"))
    return all(result.passed for result in results)


def _compare(
    paths: list[Path], base: Path, signal: str, within: float, steps: "StepWindow"
) -> "list[Compared]":
    """Compare a signal of each run with that of the base, in a window of steps."""
    from trimtab.explain.comparison import compare_signal, compare_states, first_differences
    from trimtab.report.pages.many_runs import Compared
    from trimtab.source import read_run

    runs = [read_run(path) for path in paths]
    other = read_run(base)
    pairs = []
    for path, run in zip(paths, runs, strict=True):
        found = compare_signal(run.block, other.block, within, steps, signal)
        pairs.append(
            Compared(
                name=str(path),
                run=run,
                base_name=str(base),
                base=other,
                found=found,
                differences=first_differences(run.block, other.block, steps),
                state=compare_states(run.block, other.block, steps),
            )
        )
    return pairs


def _show(
    pairs: "list[Compared]", window: "StepWindow", *, as_json: bool, html: Path | None
) -> bool:
    """Print the comparisons, and write the page; return whether all are within."""
    from trimtab.cli import output
    from trimtab.report.pages.many_runs import compare_page

    if as_json:
        shown = [_as_dict(pair, window) for pair in pairs]
        print_json("compare", {"comparisons": shown, "checks": []})
    else:
        for pair in pairs:
            headings = [f"RUN   {_heading(pair.name, pair.run)}"]
            if pair is pairs[0]:
                headings.append(f"BASE  {_heading(pair.base_name, pair.base)}")
            typer.echo("\n".join([*headings, *_lines(pair, window)]))
    if html is not None:
        output.write_page(compare_page(pairs, window), html)
    return all(pair.found.is_within for pair in pairs)


def _as_dict(pair: "Compared", window: "StepWindow") -> dict[str, Any]:
    from trimtab.core.jsonable import to_jsonable

    return {
        "run": pair.name,
        "base": pair.base_name,
        "within": pair.found.is_within,
        "first": window.first,
        "last": window.last,
        **to_jsonable(pair.found),
        "differences": to_jsonable(pair.differences),
        "state": to_jsonable(pair.state),
        "notes": {"run": pair.run.notes, "base": pair.base.notes},
    }


def _heading(name: str, source: "Run") -> str:
    from trimtab.core.signals import LOSS

    block = source.block
    return (
        f"{printable(name)}  {source.format}, {len(block):,} records, "
        f"steps {block.step.min():,} to {block.step.max():,}, {block.quality(LOSS).label} loss"
    )


def _lines(pair: "Compared", window: "StepWindow") -> list[str]:
    found, signal = pair.found, pair.found.signal
    lines = [
        f"{found.num_common:,} common steps, {found.first_step:,} to {found.last_step:,}; "
        f"trailing means over {found.window} records"
    ]
    if window.last is not None and found.last_step < window.last:
        lines.append(
            f"note: the common steps end at {found.last_step:,}, before step {window.last:,}"
        )
    qualities = [source.block.quality(signal).label for source in (pair.run, pair.base)]
    if len(set(qualities)) > 1:
        lines.append(f"note: {signal} of RUN is {qualities[0]}, that of BASE {qualities[1]}")
    if found.mean is not None:
        lines.append(
            f"{signal} differs by {found.mean:.4g} on average, by {found.worst:.4g} at most "
            f"(step {found.worst_step:,})"
        )
    lines.append(_first_differences(pair.differences))
    lines += _state_lines(pair.state)
    lines.append(_verdict(found))
    return lines


def _state_lines(found: "StateDifference | None") -> list[str]:
    """Say from where on weights or optimizer differ, if both runs have checksums of them."""
    if found is None:
        return []
    checked = f"{counted(found.num_compared, 'common step')} with checksums"
    if found.differs_at is None:
        return [f"weights and optimizer state are equal, bit for bit, at all {checked}"]
    names = ", ".join(name.replace("_hash/", " of ") for name in found.signals)
    before = "" if found.last_equal is None else f"; equal up to step {found.last_equal:,}"
    return [f"the bits differ from step {found.differs_at:,} on ({names}){before}; {checked}"]


def _first_differences(differences: "Sequence[FirstDifference]") -> str:
    """Say at which step each signal first differs, the earliest ones by name."""
    if not differences:
        return "first difference: none, all common signals are equal"
    named = ", ".join(
        f"{one.signal} at step {one.step:,} ({_unequal(one)})"
        for one in differences[:MAX_DIFFERENCES]
    )
    more = len(differences) - MAX_DIFFERENCES
    rest = f"; {counted(more, 'more signal')}" if more > 0 else ""
    return printable(f"first difference: {named}{rest}")


def _unequal(one: "FirstDifference") -> str:
    """Return the two values with as many digits as it takes to tell them apart."""
    for digits in range(6, 18):  # 17 digits tell any two floats apart
        ours, theirs = f"{one.ours:.{digits}g}", f"{one.theirs:.{digits}g}"
        if ours != theirs:
            break
    size = max(abs(one.ours), abs(one.theirs))
    is_rounding = abs(one.ours - one.theirs) <= ROUNDING * size  # False for NaN
    return f"{ours}, BASE {theirs}" + (": a rounding" if is_rounding else "")


def _verdict(found: "Comparison") -> str:
    """Say whether RUN is within the tolerance, and from where on it differs if it is not."""
    limit = f"{found.tolerance:g}"
    if found.num_broken:
        return (
            f"NOT within {limit}: at {counted(found.num_broken, 'step')} only one of the runs is "
            f"finite, first at step {found.broken_at:,}"
        )
    if found.parted_at is not None and found.difference_at_end is not None:
        side = "above" if found.difference_at_end > 0 else "below"
        return (
            f"NOT within {limit}: exceeded at {counted(found.num_beyond, 'step')}, from step "
            f"{found.parted_at:,} on at all of them; at the end RUN is "
            f"{abs(found.difference_at_end):.4g} {side} BASE"
        )
    beyond = f"exceeded at {counted(found.num_beyond, 'step')}, but not at the end"
    if not found.is_within:
        return f"NOT within {limit}: {beyond}"
    return f"within {limit}" + (f" on average; {beyond}" if found.num_beyond else "")
