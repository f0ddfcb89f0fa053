"""Fit or measure the causes: `scripts/bench causes fit|measure SUITE...`, `... stories`.

fit        weights from all runs of the suites, written beside the code that uses them
measure    the weights as they are on these suites (`--cross` to fit without each seed instead),
           printed: to build a suite takes hours
stories    the same on published incidents, the playbook's examples and public logs, into RESULTS.md
"""

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit.public_runs import DATA

from benchmarks.causes import scores, stories
from benchmarks.causes.cases import Case, Cases, read_cases
from benchmarks.causes.fitting import fit, leave_one_seed_out
from benchmarks.results import publish
from trimtab.explain.causes import ranking
from trimtab.explain.causes.ranking import Ranking, Weights, all_weights, rank

TUNE_SEEDS = range(31)
"""Seeds over 30 are kept for measurements and are never fitted on."""

LOOKED_AT = range(31, 36)
"""Seeds that were looked at before: limits of detectors were chosen by what stays found there."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="scripts/bench causes", description=__doc__)
    parser.add_argument("command", choices=("fit", "measure", "stories"))
    parser.add_argument("suites", nargs="*", type=Path, metavar="SUITE")
    parser.add_argument("--cross", action="store_true", help="leave one seed out at a time")
    chosen = parser.parse_args(arguments)
    if chosen.command == "stories":
        publish("Causes outside the lab", "scripts/bench causes stories", *stories.report(DATA))
        return
    if not chosen.suites:
        parser.error("give the folder of a suite that `trimtab lab suite` has built")
    read = read_cases(chosen.suites)
    if chosen.command == "fit":
        _fit(read)
    else:
        print(report(read, cross=chosen.cross))


def _fit(read: Cases) -> None:
    cases = [case for case in read.cases if case.cause is not None and not case.is_few]
    seeds = sorted({case.seed for case in cases})
    if not set(seeds) <= set(TUNE_SEEDS):
        sys.exit(f"seeds {seeds} are not all tune seeds (0 to {max(TUNE_SEEDS)})")
    provenance = {
        "command": "scripts/bench causes fit SUITE...",
        "date": datetime.date.today().isoformat(),
        "seeds": seeds,
        "incidents": len(cases),
    }
    weights = fit(cases, provenance)
    path = Path(ranking.__file__).with_name(ranking.WEIGHTS_FILE)
    path.write_text(_as_text(weights), encoding="utf-8")
    print(f"{path.name}: {len(cases)} incidents, temperature {weights.temperature}")


def _as_text(weights: Weights) -> str:
    """One line per observation, so that a change shows in a diff."""
    parts = weights.to_dict()
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in parts["shares"].items()]
    head = json.dumps({"provenance": parts["provenance"], "temperature": parts["temperature"]})
    return head[:-1] + ', "shares": {\n' + ",\n".join(lines) + "\n}}\n"


def report(read: Cases, *, cross: bool) -> str:
    """All tables of a measurement, as Markdown."""
    weights = all_weights()
    cases = [case for case in read.cases if case.cause is not None]

    def ranked(*, few: bool) -> list[tuple[Case, Ranking]]:
        chosen = [case for case in cases if case.is_few is few]
        if cross:
            fitted = [case for case in cases if not case.is_few]
            return leave_one_seed_out(chosen, weights.temperature, fitted)
        return [(case, rank(case.results(), weights, case.situation)) for case in chosen]

    full, few = ranked(few=False), ranked(few=True)
    rows = [scores.summary("all signals", full)]
    for grade in ("severe", "mild"):
        part = [item for item in full if item[0].grade == grade]
        rows.append(scores.summary(f"all signals, {grade}", part))
    rows.append(scores.summary("loss and gradient norm alone", few))
    how = "leaving one seed out" if cross else "with the weights as they are"
    healthy = [case for case in read.cases if case.cause is None and not case.is_few]
    named = [rank(case.results(), weights, case.situation).named for case in healthy]
    seeds = sorted({case.seed for case in cases})
    seen = " Looked at before: no held-out figures." if set(seeds) & set(LOOKED_AT) else ""
    parts = [
        f"Seeds {seeds}, {how}.{seen}",
        scores.summaries(rows),
        f"Faulty runs without an incident: {', '.join(read.missed) or 'none'}.",
        f"Incidents of runs without a fault: {len(healthy)}; cause named: "
        f"{', '.join(scores.id_of(item) for item in named) or '-'}.",
        f"All signals:\n\n{scores.calibration(full)}",
        f"Loss and gradient norm alone:\n\n{scores.calibration(few)}",
        scores.confusion(full),
        scores.speaks_for(weights),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
