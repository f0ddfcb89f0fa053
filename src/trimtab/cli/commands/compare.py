"""`trimtab compare`: how far two runs are apart, and from which step on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.options import AsJson, ExitCode, print_json

if TYPE_CHECKING:
    from trimtab.core.run import Run
    from trimtab.explain.comparison import Comparison, StateDifference


def compare(
    run: Annotated[Path, typer.Argument(help="A run directory or a log of any known format.")],
    base: Annotated[Path, typer.Argument(help="The run or log to compare it with.")],
    others: Annotated[
        list[Path] | None, typer.Argument(help="More runs to compare with BASE.")
    ] = None,
    within: Annotated[
        float, typer.Option(help="The largest mean difference of the losses.", min=0.0)
    ] = 0.05,
    until: Annotated[
        int | None, typer.Option(help="The last step to compare.", show_default="the last in both")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page with charts into this file.", show_default="none"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the loss of RUN with that of BASE, step by step, and find from where on they differ.

    The comparison is of trailing means over up to 50 common records. RUN is within the tolerance
    if the mean absolute difference is, if the difference does not exceed it at the end, and if at
    no step only one of the losses is finite. Each of OTHERS is compared with BASE in the same way.

    Example: trimtab compare runs/new runs/base --within 0.02

    Exit code: 0 within, 1 not within, 2 usage error, 3 unreadable or no common steps.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab.cli import output
    from trimtab.core.jsonable import to_jsonable
    from trimtab.core.signals import HASHES, LOSS
    from trimtab.diagnosis import read_run
    from trimtab.explain.comparison import compare_losses, compare_states
    from trimtab.report.pages.many_runs import Compared, compare_page

    paths = [run, *(others or ())]
    with output.reported_errors():
        signals = (LOSS, *HASHES) if html is None else None  # the page has charts of all of them
        sources = [read_run(path, signals=signals) for path in paths]
        other = read_run(base, signals=signals)
        found = [compare_losses(one.block, other.block, within, until) for one in sources]
        states = [compare_states(one.block, other.block, until) for one in sources]
    pairs = list(zip(paths, sources, found, strict=True))
    if as_json:
        shown = [_as_dict(one, path, base, until, (source, other)) for path, source, one in pairs]
        for one_shown, state in zip(shown, states, strict=True):
            one_shown["state"] = to_jsonable(state)
        print_json("compare", {"comparisons": shown})
    else:
        typer.echo(_heading(base, other) + (", the base" if others else ""))
        for (path, source, one), state in zip(pairs, states, strict=True):
            typer.echo(_heading(path, source))
            for line in (*_lines(one, until, (source, other)), *_state_lines(state)):
                typer.echo(line)
    if html is not None:
        compared = [
            Compared(name=str(path), block=source.block, found=one) for path, source, one in pairs
        ]
        output.write_page(compare_page(compared, str(base), other.block, until=until), html)
    is_within = all(one.is_within for one in found)
    raise typer.Exit(ExitCode.CLEAN if is_within else ExitCode.FINDINGS)


def _as_dict(
    found: "Comparison", run: Path, base: Path, until: int | None, sources: "tuple[Run, Run]"
) -> dict[str, Any]:
    from trimtab.core.jsonable import to_jsonable

    return {
        "run": str(run),
        "base": str(base),
        "within": found.is_within,
        "until": until,
        **to_jsonable(found),
        "notes": {"run": sources[0].notes, "base": sources[1].notes},
    }


def _heading(path: Path, source: "Run") -> str:
    from trimtab.core.signals import LOSS
    from trimtab.core.text import printable

    block = source.block
    return (
        f"{printable(str(path))}  {source.format}, {len(block):,} records, "
        f"steps {block.step.min():,} to {block.step.max():,}, {block.quality(LOSS).label} loss"
    )


def _lines(found: "Comparison", until: int | None, sources: "tuple[Run, Run]") -> list[str]:
    from trimtab.core.signals import LOSS

    lines = [
        f"{found.num_common:,} common steps, {found.first_step:,} to {found.last_step:,}; "
        f"trailing means over {found.window} records"
    ]
    if until is not None and found.last_step < until:
        lines.append(f"note: the common steps end at {found.last_step:,}, before step {until:,}")
    qualities = [source.block.quality(LOSS).label for source in sources]
    if len(set(qualities)) > 1:
        lines.append(f"note: RUN has a {qualities[0]} loss, BASE a {qualities[1]} one")
    if found.mean is not None:
        lines.append(
            f"loss differs by {found.mean:.4g} on average, by {found.worst:.4g} at most "
            f"(step {found.worst_step:,})"
        )
    lines.append(_verdict(found))
    return lines


def _state_lines(found: "StateDifference | None") -> list[str]:
    """Say from where on weights or optimizer differ, if both runs have checksums of them."""
    if found is None:
        return []
    checked = f"{found.num_compared:,} common steps with checksums"
    if found.differs_at is None:
        return [f"weights and optimizer state are equal, bit for bit, at all {checked}"]
    names = ", ".join(name.replace("_hash/", " of ") for name in found.signals)
    before = "" if found.last_equal is None else f"; equal up to step {found.last_equal:,}"
    return [f"the bits differ from step {found.differs_at:,} on ({names}){before}; {checked}"]


def _verdict(found: "Comparison") -> str:
    """Say whether RUN is within the tolerance, and from where on it differs if it is not."""
    limit = f"{found.tolerance:g}"
    if found.num_broken:
        return (
            f"NOT within {limit}: at {found.num_broken:,} steps only one of the losses is finite, "
            f"first at step {found.broken_at:,}"
        )
    if found.parted_at is not None and found.difference_at_end is not None:
        side = "above" if found.difference_at_end > 0 else "below"
        return (
            f"NOT within {limit}: the runs differ from step {found.parted_at:,} on; at the end RUN "
            f"is {abs(found.difference_at_end):.4g} {side} BASE"
        )
    beyond = f"exceeded at {found.num_beyond:,} steps, but not at the end"
    if not found.is_within:
        return f"NOT within {limit}: {beyond}"
    return f"within {limit}" + (f" on average; {beyond}" if found.num_beyond else "")
