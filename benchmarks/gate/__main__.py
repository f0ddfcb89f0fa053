"""Measure and publish: `scripts/bench gate [FOLDER]`; what FOLDER has already is not done again."""

import sys
import tempfile
from pathlib import Path

import torch
from tests.kit.gate_rule import healthy_runs
from tests.kit.public_runs import RUNS

from benchmarks.gate import healthy, real
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish

COMMAND = "scripts/bench gate"


def main() -> None:
    """Both sections."""
    torch.set_num_threads(1)
    if RUNS.exists():
        publish("The gate on real runs", COMMAND, *real.report(healthy_runs()))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else name)
        publish(
            "The gate on healthy kinds",
            COMMAND,
            *healthy.report(healthy.measure(ResultCache(folder))),
        )


if __name__ == "__main__":
    main()
