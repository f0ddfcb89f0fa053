"""RESULTS.md: one section per benchmark, written by the benchmark itself and by nobody else.

A section says when, at which commit and where it was measured. Its headlines stand at the top of
the page, in groups of what is claimed, each with a link to its section; in this module they are a
part of the section.
"""

import datetime
import fcntl
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """# Results

Written by `scripts/bench NAME`, all of it by `scripts/bench release`. The commit of a figure is the
last one that changed `src`. Bars are goals; where one is missed, the figure stands all the same.
"""
HEADLINE = ("headline", "measured", "bar", "others")
GROUPS = {
    "Finding": ("Detection", "Judge", "Reinforcement", "Resume"),
    "Explaining": ("Causes", "Verdicts", "Post-mortems"),
    "Acting": ("Recover", "The gate", "A real size"),
    "Checking beforehand": ("Check", "Corpus"),
    "Cost": ("Cost", "Journal", "Sending", "Pages"),
    "Reading": ("Readers",),
    "For agents": ("Agents",),
    "Scale and support": ("Scale", "Live", "Support"),
}
"""What is claimed: how the titles of its sections begin, in the order of the page."""
Headline = tuple[object, object, object] | tuple[object, object, object, object]
"""What, measured, bar, and the same figure of other tools where they were measured."""
_COMMIT = re.compile(r"(?m)^\d{4}-\d\d-\d\d, commit ([0-9a-f]{8}(?: with changes)?),")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def publish(
    title: str,
    command: str,
    body: str,
    headlines: Sequence[Headline] = (),
    *,
    is_dry: bool = False,
) -> None:
    """Print a section and, unless dry, put it in RESULTS.md in place of that of the same title."""
    today = datetime.datetime.now(datetime.UTC).date()
    parts = [f"## {title}\n{today}, commit {commit()}, `{command}`, {hardware()}."]
    if headlines:
        parts.append(table(HEADLINE, [(*one, "")[: len(HEADLINE)] for one in headlines]))
    section = "\n\n".join([*parts, body.strip()]).strip() + "\n"
    print(section)
    if not is_dry:
        rewrite(lambda sections: sections | {title: section})


def rewrite(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Change the sections of RESULTS.md, by title, while no other benchmark does."""
    with RESULTS.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sections = change(read_sections())
        ordered = [_without_headlines(sections[title]) for title in sorted(sections, key=_place)]
        file.truncate(0)
        file.write("\n".join([HEAD, *_headlines(sections), *ordered]))


def read_sections() -> dict[str, str]:
    """The sections of RESULTS.md by title, with their headlines."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    head, *parts = re.split(r"(?m)^(?=## )", text)
    headlines: dict[str, list[list[str]]] = {}
    for line in head.splitlines():
        if link := re.search(r"\]\(#(.*?)\) \|$", line):
            headlines.setdefault(link[1], []).append(line[2:-2].split(" | ")[: len(HEADLINE)])
    sections = {}
    for part in parts:
        about, _, body = part.strip().partition("\n\n")
        title = about.split("\n", 1)[0][3:]
        rows = headlines.get(_anchor(title))
        shown = [about, *([table(HEADLINE, rows)] if rows else []), body]
        sections[title] = "\n\n".join(shown).strip() + "\n"
    return sections


def commit_of(section: str) -> str | None:
    """The commit at which a section was measured; None if it does not say."""
    found = _COMMIT.search(section)
    return found[1] if found else None


def _place(title: str) -> tuple[int, str]:
    """Return where a section stands: by its group, then by its title."""
    for place, beginnings in enumerate(GROUPS.values()):
        if title.startswith(beginnings):
            return place, title
    return len(GROUPS), title


def _anchor(title: str) -> str:
    """Return what a link to a section says."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _rows(section: str) -> list[str]:
    """Return the rows of the headlines of a section, as they are written."""
    _, found, rest = section.partition(table(HEADLINE, []) + "\n")
    return list(takewhile(lambda line: line.startswith("|"), rest.splitlines())) if found else []


def _without_headlines(section: str) -> str:
    rows = _rows(section)
    before, _, after = section.partition("\n".join([table(HEADLINE, []), *rows]))
    return f"{before.strip()}\n\n{after.strip()}".strip() + "\n" if rows else section


def _headlines(sections: dict[str, str]) -> list[str]:
    """Return the headlines of all sections, a table for each group that has some."""
    groups: dict[int, list[list[str]]] = {}
    for title in sorted(sections, key=_place):
        command = re.search(r"`scripts/bench (.*?)`", sections[title])
        link = f"[`{command[1] if command else title}`](#{_anchor(title)})"
        for line in _rows(sections[title]):
            cells = [cell.strip() for cell in line[2:-1].split(" | ")]
            groups.setdefault(_place(title)[0], []).append([*cells, link])
    names = [*GROUPS, "Others"]
    header = ("what", *HEADLINE[1:], "scripts/bench")
    return [f"**{names[at]}**\n\n{table(header, groups[at])}\n" for at in sorted(groups)]


def commit() -> str:
    """The last commit that changed what is measured, `1a2b3c4d` or `1a2b3c4d with changes`.

    The number of the version is not measured, and is set once everything is.
    """
    source = ("--", "src", ":!src/trimtab/_version.py")
    head = _git("log", "-1", "--format=%h", "--abbrev=8", *source) or "00000000"
    return f"{head} with changes" if _git("status", "--porcelain", *source) else head


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def hardware() -> str:
    """The machine in a few words."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"model name\s*: (.*)", cpuinfo.read_text(encoding="utf-8"))
        model = names[0] if names else model
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, "
        f"load {load:.1f} at the end"
    )
