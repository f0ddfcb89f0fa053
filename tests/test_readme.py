"""What the README shows is what happens, and every figure in it is a figure of RESULTS.md."""

import re
from pathlib import Path

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from tests.kit.excerpts import matches
from trimtab._version import __version__
from trimtab.cli.main import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")

PROSE = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", README, flags=re.DOTALL)


def test_the_command_prints_what_the_readme_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    shown = re.search(r"\$ trimtab (diagnose [^\n]*)\n(.*?)```", README, re.DOTALL)
    assert shown
    result = CliRunner().invoke(app, shown[1].split())
    assert matches(shown[2], result.stdout), result.stdout
    assert result.exit_code == 1


def section(title: str) -> str:
    """One section of RESULTS.md."""
    return RESULTS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def figures(title: str, row: str, part: str = "") -> list[str]:
    """The cells of a row of RESULTS.md that begins with these cells."""
    text = section(title).split(f"\n### {part}")[1] if part else section(title)
    line = re.search(rf"(?m)^\| {re.escape(row)} \| (.*) \|$", text)
    assert line, f"{title} has no row {row}"
    return line[1].split(" | ")


def rate(cell: str) -> tuple[str, float]:
    """The count and the rate of a cell such as `35; 7.37 [5.13, 10.25]`."""
    count, per_10k = re.match(r"([\d,]+); ([\d.]+)", cell).groups()  # type: ignore[union-attr]
    return count, float(per_10k)


def test_the_table_of_detection_has_the_figures_of_the_results() -> None:
    rows = re.findall(r"(?m)^\| (.*?) \| (.*?) \| (.*?) \|$", README)
    shown = {name: cells for name, *cells in rows}
    real = [
        figures("Detection on the real runs", name, "held-out")
        for name in ("trimtab", "trimtab --rules textbook")
    ]
    quiet = [
        figures("Detection: quiet parts of eventful runs", f"held-out | {name}")
        for name in ("trimtab", "trimtab --rules textbook")
    ]
    bars = figures("Detection: the bars", "false episodes on healthy runs")
    points = re.search(r"in ([\d,]+) points", bars[1])
    assert points
    assert shown["clear spikes, divergences and NaNs found"] == [cells[2] for cells in real]
    counts = [rate(cells[0]) for cells in real]
    assert shown[f"false alarms in healthy runs, {points[1]} points"] == [
        counts[0][0],
        f"{counts[1][0]}, or {counts[1][1]:.0f} per 10,000",
    ]
    key = f"false alarms in the quiet parts of eventful runs, {quiet[0][1]} points"
    assert shown[key] == [
        f"{count}, or {per_10k:.0f} per 10,000"
        for count, per_10k in (rate(cells[2]) for cells in quiet)
    ]


def test_the_costs_are_those_of_the_results() -> None:
    shown = dict(re.findall(r"(?m)^\| `(\w+)` \| .* \| (\+[\d.]+ %) \|$", README))
    lines = section("Cost of long steps").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| 512 |")]
    assert shown == {mode: mean for _, mode, _, mean, *_ in rows}


def test_the_figures_in_the_text_are_those_of_the_results() -> None:
    text = " ".join(PROSE.split())
    looks = (ROOT / "benchmarks" / "detect" / "looks.toml").read_text(encoding="utf-8")
    assert "looked at for the 28th time" in looks
    assert "trimtab was evaluated 28 times; the last ten evaluations chose nothing" in text
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    ours = re.search(
        r"a file: verdict, date and act all right \| (\d+) of (\d+);.*\| (\d+) of", results
    )
    assert ours is not None
    right, files, others = ours.groups()
    assert f"On {files} files of runs, trimtab gets verdict, date and advice right on" in text
    assert f"right on {right}, the best other rule on {others}" in text
    together = figures("The gate on real runs", "together")
    assert f"Of {int(together[2]):,} healthy steps of public runs, would drop none" in text
    assert together[3].startswith("0 ")


def test_every_figure_in_the_readme_is_compared_with_the_results() -> None:
    compared = """62 65 95 61 94 104,120 793 76 10,000 47,493 32 7 57 12 0.46 0.80 2.98
        88,968 168 136 102"""
    others = """3 4 0 24 28 2.0 0.3 10"""  # hour, processes, loss, faults, looks, licence, step
    found = set(re.findall(r"(?<![\w.])\d[\d,.]*\d|(?<![\w.])\d(?!\w)", PROSE))
    assert found <= set(compared.split()) | set(others.split())


@pytest.mark.skipif(Version(__version__).is_prerelease, reason="between releases sections differ")
def test_the_results_of_a_release_are_of_one_commit() -> None:
    measured = re.findall(r"(?m)^\d{4}-\d\d-\d\d, commit (\w{8}),", RESULTS)
    assert len(set(measured)) == 1
    assert len(measured) == RESULTS.count("\n## ")
