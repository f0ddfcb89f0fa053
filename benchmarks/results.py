"""RESULTS.md: one section per benchmark, written by the benchmark itself and by nobody else."""

import datetime
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = "# Results\n\nWritten by `scripts/bench NAME`; each figure stands beside its bar.\n"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def publish(title: str, command: str, body: str) -> None:
    """Print a section and put it in RESULTS.md in place of the one with the same title."""
    today = datetime.datetime.now(datetime.UTC).date()
    section = f"## {title}\n\n{today}, `{command}`, {hardware()}.\n\n{body.strip()}\n"
    print(section)
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else HEAD
    parts = re.split(r"(?m)^(?=## )", text)
    sections = {part.split("\n", 1)[0]: part.strip() + "\n" for part in parts[1:]}
    sections[f"## {title}"] = section
    ordered = [sections[key] for key in sorted(sections)]
    RESULTS.write_text("\n".join([HEAD, *ordered]), encoding="utf-8")


def rows_of(title: str) -> list[list[str]]:
    """The rows of the table of a section, without its header; none if there is no such section."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    parts = [part for part in re.split(r"(?m)^(?=## )", text) if part.startswith(f"## {title}\n")]
    lines = [line for part in parts for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines[2:]]


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
