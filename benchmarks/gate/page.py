"""Page: the figures on docs/optimizer.md, taken from RESULTS.md and never typed by hand."""

import re
from pathlib import Path

from benchmarks.results import RESULTS, table

PAGE = Path(__file__).parents[2] / "docs" / "optimizer.md"
BEGIN, END = "<!-- figures of benchmarks/RESULTS.md -->", "<!-- end of figures -->"


def write() -> None:
    """Put the figures of RESULTS.md into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{figures()}\n{END}{after}", encoding="utf-8")


def shown() -> str:
    """The figures that the page has."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def figures() -> str:
    """The figures that the page must have."""
    halves, kinds = _tables("The gate on healthy kinds")
    public, spike = _tables("The gate on real runs")
    damages, streams = _tables("The gate on damaged weights")
    lab = _tables("Protection in the lab")[0]
    rows = [
        [f"{kinds_in} healthy kinds, {half} half", f"{steps} steps", f"{discards} discarded"]
        for half, kinds_in, steps, discards, *_ in halves
    ]
    worse = [row[0] for row in kinds if row[-1] == "NO"]
    touched = [row for row in kinds if row[-1]]
    rows.append(
        [
            "kinds that the gate touched",
            f"{len(touched)} of {len(kinds)}",
            f"{len(worse)} worse than without it" + (f": {', '.join(worse)}" if worse else ""),
        ]
    )
    _, _, _, steps, discards, scaled = public[-1]
    rows.append(["public healthy runs", f"{steps} steps", f"{discards} discarded, {scaled} scaled"])
    either = [int(share.split()[0]) for share in spike[-1][2:]]
    rows.append(
        ["spike of BLOOM-176B on public runs", "its second step", f"{either[0]} % neutralised"]
    )
    rows.append(["", "each later one", f"{min(either[1:])} % neutralised"])
    for title, bare, change, discards, scaled in damages:
        outcome = f"{change} with the gate ({discards} discarded, {scaled} scaled)"
        rows.append([title, f"loss {bare} without it", outcome])
    for fault, mode, _, worst, within, *_ in lab:
        if mode == "protect":
            rows.append([fault, f"worst {worst}", f"{within} seeds within 0.02 of the clean run"])
    withheld = [
        [title, f"{count} steps", f"{discards} discarded, {scaled} scaled, {taken} taken"]
        for title, count, discards, scaled, taken in streams
    ]
    header = ("what", "of", "result")
    return table(header, rows) + "\n\n" + table(("made-up stream", "odd", "result"), withheld)


def _tables(title: str) -> list[list[list[str]]]:
    """The tables of a section, without their headers."""
    text = RESULTS.read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text)
    if found is None:
        raise LookupError(f"RESULTS.md has no section {title!r}")
    tables = re.findall(r"(?m)(?:^\|.*\|\n?)+", found[1])
    return [
        [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()[2:]]
        for block in tables
    ]
