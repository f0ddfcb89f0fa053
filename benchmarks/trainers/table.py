"""`scripts/bench trainers table FOLDER [--python INTERPRETER ...]`: every setting.

What was measured is kept in FOLDER, so a measurement can be continued. Each interpreter is one of
an environment with other versions, such as the oldest that are supported.
"""

import argparse
import itertools
import json
import subprocess
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.result_cache import Outcome, ResultCache
from benchmarks.results import publish, table
from benchmarks.trainers.compare import compare
from benchmarks.trainers.installed import TRAINERS, Trainer
from benchmarks.trainers.setting import Setting

COLUMNS = ("observe", "protect", "recover", "reads")
HEAD = (
    "Tiny models on the CPU; each row has the settings that were measured: accumulation 1 and 4, "
    "on 1 and 2 ranks, in each precision. `observe`: parameters, optimizer state, schedule and "
    "random numbers have the bits of "
    "the run without trimtab. `protect`: a NaN batch, on 2 ranks of only one of them, leaves no "
    "trace in weights and moments, and every other step is applied. `recover`: a healthy run "
    "has the bits of the same run in `protect`. No reads: trimtab reads no value of the device "
    "on the host in 8 steps, in `observe` and `protect`. fp16 is with loss scaling; torchtitan "
    "has none. Bar: all, in the oldest and the newest version.\n\n"
)


def measure(folder: Path, names: set[str], seconds: float) -> None:
    """Every trainer of this environment in every setting; no setting begins later."""
    cache, ends = ResultCache(folder), time.monotonic() + seconds
    for trainer in TRAINERS:
        if not trainer.is_installed or (names and trainer.name not in names):
            continue
        for setting in trainer.settings():
            name = f"{trainer.name} {trainer.version} {setting}"
            if cache.has(name) or time.monotonic() < ends:
                cache.get(name, partial(_compared, trainer, setting))


def _compared(trainer: Trainer, setting: Setting) -> Outcome:
    facts = {"trainer": trainer.name, "version": trainer.version, "setting": str(setting)}
    return facts | {"precision": setting.precision} | asdict(compare(trainer.run(), setting))


def measured(folder: Path) -> list[Outcome]:
    """What was measured in all environments, in the order of the trainers."""
    names = [trainer.name for trainer in TRAINERS]
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(rows, key=lambda row: (names.index(row["trainer"]), row["version"]))


def body(rows: list[Outcome]) -> str:
    """The section of RESULTS.md."""
    cells, failures = [], []
    keys = ("trainer", "version")
    for key, group in itertools.groupby(rows, key=lambda row: tuple(row[k] for k in keys)):
        settings = list(group)
        good = [sum(not row[name] for row in settings) for name in COLUMNS]
        precisions = ", ".join(sorted({row["precision"] for row in settings}))
        cells.append([*key, precisions, *(f"{count} of {len(settings)}" for count in good)])
        failures += [
            f"- {row['trainer']}, {row['version']}, {row['setting']}: {name}: {row[name]}"
            for row in settings
            for name in COLUMNS
            if row[name]
        ]
    header = ["trainer", "versions", "precision", "observe", "protect", "recover", "no reads"]
    text = HEAD + table(header, cells)
    return text + ("\n\nFailures:\n\n" + "\n".join(failures) if failures else "")


def main(arguments: list[str]) -> None:
    """Measure here and in the other environments, and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench trainers table", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--trainers", default="", help="names, such as Lightning; default: all")
    parser.add_argument("--minutes", type=float, default=1e6, help="no setting begins later")
    parser.add_argument("--no-publish", action="store_true")
    chosen = parser.parse_args(arguments)
    names = set(filter(None, chosen.trainers.split(",")))
    measure(chosen.folder, names, 60 * chosen.minutes)
    for interpreter in chosen.python:
        command = [interpreter, "-m", "benchmarks.trainers", "table", str(chosen.folder)]
        command += ["--trainers", chosen.trainers, "--minutes", str(chosen.minutes)]
        subprocess.run([*command, "--no-publish"], check=True)
    text = body(measured(chosen.folder))
    if chosen.no_publish:
        print(text)
    else:
        rows = measured(chosen.folder)
        right = sum(not any(row[name] for name in COLUMNS) for row in rows)
        what = "settings of trainers in which every promise is kept"
        headline = (what, f"{right} of {len(rows)}", "all")
        publish("Live: trainers", "scripts/bench trainers table", text, [headline])
