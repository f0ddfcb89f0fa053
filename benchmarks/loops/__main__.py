"""`scripts/bench loops setups | soak [STEPS]`."""

import ast
import os
import sys

from benchmarks.loops.reports import run_tests
from benchmarks.loops.setups import publish_setups
from benchmarks.results import publish, table

SOAK_STEPS = "100000"
SOAKED = {"plain": 1, "layer_drop": 10, "create_graph": 10}
"""Loops; a step of the later ones takes several times as long, so they take fewer of them."""


def main(arguments: list[str]) -> None:
    """Run one of the commands."""
    command, *rest = arguments or [""]
    if command == "setups":
        publish_setups()
    elif command == "soak":
        publish_soak(*rest)
    else:
        sys.exit(__doc__)


def publish_soak(steps: str = SOAK_STEPS) -> None:
    """Train for very long and publish what grew."""
    rows = []
    for kind, share in SOAKED.items():
        num_steps = int(steps) // share
        os.environ["SOAK_STEPS"] = str(num_steps)
        for result in run_tests(["soak"], "-k", kind, "--timeout=0"):
            first, last = (ast.literal_eval(result.properties[key]) for key in ("first", "last"))
            grown = [last[key] - first[key] for key in ("kilobytes", "threads", "handles")]
            name = result.name.partition("[")[2].rstrip("]")
            rows.append([name, f"{num_steps:,}", *grown, result.outcome])
    body = (
        "Small models; what the process has more at the end than after a quarter of the steps. "
        "LayerDrop leaves out another tenth of 30 layers in every step; create_graph keeps the "
        "graph of the gradients.\n\n"
    )
    header = ["loop and mode", "steps", "resident memory, kB", "threads", "handles", "within 12 MB"]
    largest = max(int(row[2]) for row in rows)
    publish(
        "Live: long runs",
        f"scripts/bench loops soak {steps}",
        body + table(header, rows),
        [
            (
                f"memory in three quarters of {int(steps):,} steps, largest growth",
                f"{largest:,} kB",
                "12,000 kB",
            )
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
