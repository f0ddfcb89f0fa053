"""Fit or measure the causes: `scripts/bench causes fit|measure SUITE...`, `... stories`.

fit        weights from all runs of the suites, written beside the code that uses them
measure    the weights as they are on these suites, printed: to build a suite takes hours
stories    the same on published incidents, the playbook's examples and public logs, into RESULTS.md
"""

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kit.public_runs import DATA

from benchmarks.causes import fitting, stories
from benchmarks.causes.cases import Cases, read_cases
from benchmarks.causes.fitting import fit
from benchmarks.results import publish, table
from trimtab.explain.causes import ranking
from trimtab.explain.causes.ranking import Weights, all_weights, rank

TUNE_SEEDS = range(31)
"""Seeds over 30 are kept for measurements and are never fitted on."""

LOOKED_AT = range(31, 36)
"""Seeds that were looked at before: limits of detectors were chosen by what stays found there."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="scripts/bench causes", description=__doc__)
    parser.add_argument("command", choices=("fit", "measure", "stories"))
    parser.add_argument("suites", nargs="*", type=Path, metavar="SUITE")
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
        print(report(read))


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


def report(read: Cases) -> str:
    """How often the cause is right, with all signals and with two."""
    weights = all_weights()
    rows = []
    for name, is_few in (("all signals", False), ("loss and gradient norm alone", True)):
        chosen = [one for one in read.cases if one.cause is not None and one.is_few is is_few]
        ranked = [(one, rank(one.results(), weights, one.situation)) for one in chosen]
        rows.append(fitting.summary(name, ranked))
    seeds = sorted({one.seed for one in read.cases})
    seen = " Looked at before: no held-out figures." if set(seeds) & set(LOOKED_AT) else ""
    return "\n\n".join(
        [
            f"Seeds {seeds}.{seen}",
            table(fitting.HEADER, rows),
            f"Faulty runs without an incident: {', '.join(read.missed) or 'none'}.",
            fitting.speaks_for(weights),
        ]
    )


if __name__ == "__main__":
    main()
