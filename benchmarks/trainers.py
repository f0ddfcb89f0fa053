"""Trainers with and without trimtab: `scripts/bench trainers [--python INTERPRETER ...]`.

Every setting is trained without trimtab, in `observe`, in `protect` with one NaN batch, and in
`recover` with a rollback. An interpreter of a different environment, with the oldest versions that
are supported, adds its own column.
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integrations.trainer_runs import TRAINERS, Outcome, Setting, train
from tests.ranks import run_ranks

from benchmarks.results import publish, table

PACKAGES = ("transformers", "trl", "accelerate", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One trainer in one setting."""

    trainer: str
    observe: bool
    """Whether the bits are those of the run without trimtab."""
    protect: bool
    """Whether the NaN step and only it left no trace in weights and moments."""
    recover: bool
    """Whether a run that went back has the bits of the one that never left."""


def check(trainer: str, setting: Setting) -> Checked:
    """Train the four runs of a setting."""
    with tempfile.TemporaryDirectory() as folder:

        def run(mode: str | None, *, nan: bool = False, back: bool = False) -> list[Outcome]:
            name = f"{mode}-{nan}-{back}"
            return _on_ranks(train, setting, trainer, Path(folder) / name, mode, setting, nan, back)

        plain, observed = run(None), run("observe")
        protected, returned = run("protect", nan=True), run("recover", back=True)
        never_left = run("recover")
    return Checked(
        trainer=trainer,
        observe=_bits(observed) == _bits(plain),
        protect=all(one.held == (6,) for one in protected),
        recover=_bits(returned) == _bits(never_left)
        and all(one.num_steps > 16 for one in returned),
    )


def _bits(outcomes: list[Outcome]) -> list[str]:
    return [one.bits for one in outcomes]


def _on_ranks(body: Callable[..., Outcome], setting: Setting, *arguments: Any) -> list[Outcome]:
    # Also one rank in a process of its own: accelerate keeps its state for the whole process.
    return run_ranks(body, setting.ranks, *arguments, timeout=600)


def settings() -> list[Setting]:
    """All settings."""
    found = itertools.product((1, 2), ("fp32", "bf16", "fp16"), (1, 4))
    return [Setting(ranks=r, precision=p, accumulate=a) for r, p, a in found]


def versions() -> str:
    """What is installed here."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def measure() -> dict[str, Any]:
    """Every trainer in every setting, in this environment."""
    rows = {}
    for trainer in TRAINERS:
        done = []
        for setting in settings():
            done.append(check(trainer, setting))
            print(setting, done[-1], file=sys.stderr, flush=True)
        rows[trainer] = {
            name: f"{sum(getattr(one, name) for one in done)} of {len(done)}"
            for name in ("observe", "protect", "recover")
        }
    return {"versions": versions(), "rows": rows}


def main() -> None:
    """Measure here and in the other environments, and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    here = measure()
    if chosen.json:
        print(json.dumps(here))
        return
    found = [here]
    for interpreter in chosen.python:
        command = [interpreter, "-m", "benchmarks.trainers", "--json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    rows = [
        [one["versions"], trainer, *values.values()]
        for one in found
        for trainer, values in one["rows"].items()
    ]
    body = (
        "Tiny models on the CPU; 12 settings: 1 and 2 ranks, fp32, bf16 and fp16 with loss "
        "scaling, accumulation 1 and 4. `observe`: parameters, optimizer state, schedule and "
        "random numbers have the bits of the run without trimtab. `protect`: a NaN batch leaves no "
        "trace in weights and moments, and every other step is applied. `recover`: a run that "
        "went back has the bits of the one that never left. Bar: all.\n\n"
        + table(["versions", "trainer", "observe", "protect", "recover"], rows)
    )
    publish("Live: trainers", "scripts/bench trainers", body)


if __name__ == "__main__":
    main()
