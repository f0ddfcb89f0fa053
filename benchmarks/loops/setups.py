"""The set-ups that were tried, as a table in docs/live.md, and their number in RESULTS.md.

Optimizers of other packages are tried where they are installed. None of them is in a dependency
group, because some would install a second torch; `pip install --no-deps` of adan-pytorch,
bitsandbytes, prodigyopt, pytorch-optimizer, schedulefree, timm and torchao is enough.
"""

import re
from collections import Counter
from collections.abc import Mapping

from benchmarks.loops.reports import ROOT, TestResult, run_tests
from benchmarks.results import publish, table

PAGE = ROOT / "docs" / "live.md"
HEADING = "## Tried with"
GROUPS = {
    "optimizer": "Optimizers",
    "precision": "Precision",
    "loop": "Loops",
    "model": "Models",
    "trainer": "Trainers",
    "ranks": "Several ranks",
}
SWEEP = "sweep"
SAME_BITS, NO_TRACE = "same bits", "no trace of the bad step"


def publish_setups() -> None:
    """Try every set-up and write the section."""
    results = run_tests(["setups/setups"], "--timeout=300")
    tried = [result for result in results if result.outcome != "skipped"]
    parts = [f"{_introduction(tried)} Written by\n`scripts/bench loops setups`."]
    mine = {g: [one for one in tried if one.properties.get("group") == g] for g in GROUPS}
    parts.append(by_outcome({g: [_row(one) for one in mine[g]] for g in GROUPS}))
    parts.append(_sweep([r for r in results if r.properties.get("group") == SWEEP]))
    write_section("\n\n".join(parts))
    accepted = [one for one in tried if not _cells(one)[0].startswith("refused")]
    watched = sum(_cells(one)[0] == SAME_BITS for one in accepted)
    protected = sum(_cells(one)[1] == NO_TRACE for one in accepted)
    recovered = [one for one in accepted if one.outcome != "passed" or "recover" in one.properties]
    equal = sum("recover" in one.properties for one in recovered)
    publish(
        "Recover: healthy loops",
        "scripts/bench loops setups",
        f"{len(recovered)} set-ups of [docs/live.md](../docs/live.md#tried-with) that `recover` "
        f"takes, without a fault: in {equal} of them parameters and buffers have the bits of the "
        "same run in `protect`.",
        [("healthy runs with the bits of protect", f"{equal} of {len(recovered)}", "all")],
    )
    publish(
        "Live: set-ups",
        "scripts/bench loops setups",
        f"{_introduction(tried)} Each of them is in [docs/live.md](../docs/live.md#tried-with). "
        f"Refused by `watch` with a sentence: {len(tried) - len(accepted)}.",
        [
            ("set-ups in which observe leaves the bits", f"{watched} of {len(accepted)}", "all"),
            ("in which protect leaves no trace of a NaN", f"{protected} of {len(accepted)}", "-"),
        ],
    )


def _introduction(tried: list[TestResult]) -> str:
    alone = sum(result.properties.get("group") != SWEEP for result in tried)
    swept = len(tried) - alone
    return (
        f"{alone} set-ups, and {swept} optimizers of pytorch_optimizer. Each trains a small model\n"
        "for 12 steps without trimtab, in `observe`, and in `protect` with one batch whose loss\n"
        "is NaN. *Same bits*: parameters and buffers equal those of the bare run. *No trace*:\n"
        "they equal those of a bare run that never saw the bad batch."
    )


def by_outcome(rows: Mapping[str, list[tuple[str, str, str]]]) -> str:
    """Return the set-ups of each group as a table with one row for each outcome."""
    lines = []
    for group, title in GROUPS.items():
        names: dict[tuple[str, str], list[str]] = {}
        for name, observe, protect in rows[group]:
            names.setdefault((observe, protect), []).append(name)
        lines += [[title, *outcome, "; ".join(them)] for outcome, them in names.items()]
    return table(["", "`observe`", "`protect`, one NaN batch", "set-ups"], lines)


def _row(result: TestResult) -> tuple[str, str, str]:
    return (result.properties["setup"], *_cells(result))


def _cells(result: TestResult) -> tuple[str, str]:
    observe = result.properties.get("observe", "")
    protect = result.properties.get("protect", "")
    if observe.startswith("refused"):
        return _short(observe), ""
    if result.outcome != "passed":
        problem = _short(result.message.splitlines()[0] if result.message else "fails")
        return (observe, f"not yet: {problem}") if observe else (f"not yet: {problem}", "")
    return observe, _short(protect)


def _short(sentence: str) -> str:
    """One line without what would break a table."""
    line = re.sub(r"\s+", " ", sentence).replace("|", "/").replace("AssertionError: ", "")
    return line if len(line) <= 160 else line[:157] + "..."


def _sweep(results: list[TestResult]) -> str:
    counts: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    for result in results:
        kind = _kind(result)
        counts[kind] += 1
        named.setdefault(kind, []).append(result.properties["setup"].partition(": ")[2])
    said = "; ".join(
        f"{kind}: {count}" + ("" if kind == NO_TRACE else f" ({', '.join(named[kind])})")
        for kind, count in counts.most_common()
    )
    return f"Of pytorch_optimizer, {said}."


def _kind(result: TestResult) -> str:
    if result.outcome == "skipped":
        return "the bare run fails or is not reproducible"
    observe, protect = _cells(result)
    cell = protect or observe
    return "refused in a sentence" if cell.startswith("refused") else cell


def write_section(body: str) -> None:
    """Put the section into the page, before the limits or at its end."""
    text = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=## )", text)
    kept = [section for section in sections if not section.startswith(HEADING)]
    at = next((i for i, s in enumerate(kept) if s.startswith("## Limits")), len(kept))
    kept.insert(at, f"{HEADING}\n\n{body.strip()}\n\n")
    PAGE.write_text("".join(kept).rstrip() + "\n", encoding="utf-8")
    print(f"{HEADING}\n\n{body}")
