"""Pages of several runs: a comparison (where and how far they part), and the fleet of live runs."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, Column, FloatArray
from trimtab.core.escaping import Html, Text, html_table, tag
from trimtab.core.run import Run
from trimtab.core.text import digits
from trimtab.explain.comparison import (
    Comparison,
    FirstDifference,
    StateDifference,
    StepWindow,
    trailing_differences,
)
from trimtab.report.pages.page import facts_list, render_page
from trimtab.report.pages.run_charts import make_chart
from trimtab.report.pages.series import LOG_RATIO, RunLines

_COMPARE_SCRIPTS = ("uplot.min.js", "theme.js", "charts.js", "compare.js")

_SHARED = (
    ("loss", signals.LOSS),
    ("gradient norm", signals.GRAD_NORM),
    ("learning rate", signals.LR),
    ("weight norm", signals.PARAM_NORM),
    ("tokens per second", signals.TOKENS_PER_SECOND),
)

_MAX_DIFFERENCES = 20
"""Signals of a run in the table of first differences; layers have hundreds."""

_FLEET_SCRIPTS = ("theme.js", "fleet.js")

_NUMBERS = ("step", "open", "incidents", "tokens/s", "last record")
_FLEET_COLUMNS = ("state", "run", "loss", "curve", *_NUMBERS, "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run beside the base."""

    name: str
    run: Run
    base_name: str
    base: Run
    found: Comparison
    differences: Sequence[FirstDifference]
    state: StateDifference | None


def compare_page(runs: Sequence[Compared], window: StepWindow) -> str:
    """Return the page of runs that are compared with one base."""
    base_name, base = runs[0].base_name, runs[0].base.block
    lines = [RunLines.of(base), *(RunLines.of(one.run.block) for one in runs)]
    names = _labels([base_name, *(one.name for one in runs)])
    charts = []
    compared = runs[0].found.signal
    own = () if compared in dict(_SHARED).values() else ((compared, compared),)
    for title, signal in (*own, *_SHARED):
        held = [n for n, one in enumerate(lines) if one.block.column(signal).recorded]
        if len(held) > 1:
            charts.append(_overlay(title, signal, [(names[n], lines[n]) for n in held]))
    charts.insert(1, _differences(runs, names[1:], window))
    marks = [
        {"first": run.found.parted_at, "last": run.found.parted_at, "tone": "alarm", "number": n}
        for n, run in enumerate(runs, start=1)
        if run.found.parted_at is not None
    ]
    within = sum(run.found.is_within for run in runs)
    facts: list[tuple[str, Text]] = [
        ("base", base_name),
        ("within", f"{within} of {len(runs)} runs, tolerance {runs[0].found.tolerance:g}"),
    ]
    body = tag(
        "main",
        tag("header", tag("h1", f"{', '.join(names[1:])} vs {names[0]}")),
        facts_list(facts),
        tag("section", _table(runs)),
        tag("section", tag("h2", "Charts"), tag("div", id="charts")),
        tag("section", tag("h2", "First difference of each signal"), _differences_table(runs)),
    )
    return render_page(
        title="trimtab compare",
        body=body,
        data={"charts": charts, "marks": marks},
        scripts=_COMPARE_SCRIPTS,
    )


def _overlay(title: str, signal: str, held: Sequence[tuple[str, RunLines]]) -> dict[str, Any]:
    """Return one signal of several runs in one chart; the base is drawn first."""
    chart = make_chart(held[0][1], title, [signal])
    series = [{**one.line(signal, 1000), "label": name} for name, one in held]
    columns = [one.block.column(signal) for _, one in held]
    values = np.concatenate([column.values[column.finite] for column in columns])
    return {**chart, **_whole_axis(values), "total": "base", "series": series}


def _whole_axis(values: FloatArray) -> dict[str, Any]:
    """Return an axis that shows everything: where runs part is what a comparison is read for."""
    low, high = float(values.min()), float(values.max())
    is_log = low > 0 and high > LOG_RATIO * float(np.median(values))
    room = 0.0 if is_log else 0.03 * (high - low)
    return {"log": is_log, "range": [low - room, high + room]}


def _labels(names: Sequence[str]) -> list[str]:
    """Return the names without the folders that they share."""
    parts = [name.split("/") for name in names]
    shared = 0
    while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
        shared += 1
    return ["/".join(part[shared:]) for part in parts]


def _differences(
    runs: Sequence[Compared], names: Sequence[str], window: StepWindow
) -> dict[str, Any]:
    """Return the difference of the trailing means, with the tolerance as grey lines."""
    series: list[dict[str, Any]] = []
    tolerance, signal = runs[0].found.tolerance, runs[0].found.signal
    reach = tolerance
    for name, one in zip(names, runs, strict=True):
        steps, values = trailing_differences(one.run.block, one.base.block, window, signal)
        column = {signal: Column.complete(values)}
        line = RunLines.of(Block.from_columns(column, step=steps)).line(signal, 1000)
        series.append({**line, "label": name})
        if len(values):
            reach = max(reach, float(np.percentile(np.abs(values), 99)))
    known = [line["x"] for line in series if line["x"]]
    ends = [min(x[0] for x in known), max(x[-1] for x in known)] if known else [0, 1]
    for sign in (1, -1):
        limit = {"label": "tolerance", "x": ends, "y": [sign * tolerance] * 2, "limit": True}
        series.append(limit)
    return {
        "kind": "lines",
        "title": f"{signal} minus base, trailing means",
        "log": False,
        "range": [-1.2 * reach, 1.2 * reach],
        "series": series,
    }


def _table(runs: Sequence[Compared]) -> Text:
    head = (
        "run",
        "result",
        "apart since step",
        "mean difference",
        "largest",
        "at the end",
        "steps",
    )
    rows = []
    for run in runs:
        found = run.found
        result = tag("span", "within", class_="tag")
        over = f" by over {found.tolerance:g}" * bool(found.num_beyond)
        if not found.is_within:
            result = tag("span", f"differs{over}", class_="tag alarm")
        back = "" if found.is_within else "back at the end"
        parted = back if found.parted_at is None else f"{found.parted_at:,}"
        if found.num_broken:
            parted = f"not finite at {found.broken_at:,}"
        largest = "" if found.worst_step is None else f" at {found.worst_step:,}"
        rows.append(
            (
                run.name,
                result,
                parted,
                digits(found.mean),
                digits(found.worst) + largest,
                digits(found.difference_at_end),
                f"{found.num_common:,}",
            )
        )
    return html_table(head, rows, numeric=(2, 3, 4, 5, 6), class_="cards")


def _differences_table(runs: Sequence[Compared]) -> Text:
    """Return where the signals of each run first differ from the base, the earliest first."""
    rows = [
        (run.name, one.signal, f"{one.step:,}", f"{one.ours:.6g}", f"{one.theirs:.6g}")
        for run in runs
        for one in run.differences[:_MAX_DIFFERENCES]
    ]
    if not rows:
        return tag("p", "None: all common signals are equal at all common steps.")
    head = ("run", "signal", "step", "value", "base")
    return html_table(head, rows, numeric=(2, 3, 4), class_="cards")


def fleet_page(fleet: Mapping[str, Any]) -> str:
    """Return the page of all runs; its script makes the rows from the data, as text."""
    search = tag("input", id="filter", placeholder="filter: name, state", aria_label="Filter runs")
    body = tag(
        "main",
        tag(
            "header",
            tag("h1", "Runs"),
            tag("p", "", id="counts", role="status"),
            tag("p", search),
        ),
        tag("section", _live_table("runs", _FLEET_COLUMNS, {"loss", *_NUMBERS}, "All runs")),
        tag("noscript", tag("p", "This page needs JavaScript.")),
    )
    return render_page(
        title="trimtab: runs", body=body, data=fleet, scripts=_FLEET_SCRIPTS, is_served=True
    )


def _live_table(id: str, names: Sequence[str], numbers: Set[str], label: str) -> Html:
    kinds = ("n" if name in numbers else None for name in names)
    head = [
        tag("th", name, scope="col", class_=kind) for name, kind in zip(names, kinds, strict=True)
    ]
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", id=id), class_="cards fleet")
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)
