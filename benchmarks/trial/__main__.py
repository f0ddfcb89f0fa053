"""scripts/bench trial: what the trial of states restores, proposes and leaves alone.

Each fault is trained clean, in `recover` that waits (`recover.rollback = "off"`) and in `recover`
that restores (`"auto"`), from the same weights and on the same data; where "auto" has done nothing,
waiting is the same run. Purposeful changes and healthy runs are trained with `"auto"`: what counts
is what it does. All worlds come before the next seed, so that a study that is stopped has the same
of each; `--folder` keeps every outcome, to go on later.
"""

import argparse
import logging
import math
import os
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.recover.worlds import World
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish
from benchmarks.trial.faults import FAULTS, HEALTHY
from benchmarks.trial.loops import LOOP_OF_ITS_OWN
from benchmarks.trial.measurement import (
    HEALTHY_STEPS,
    LENGTHS,
    PURPOSE_BEGIN,
    PURPOSE_STEPS,
    STEPS,
    USUAL,
    Measurement,
)
from benchmarks.trial.purposes import PURPOSES
from benchmarks.trial.tables import Study
from benchmarks.trial.worlds import GPT2_WORLD, LIGHTNING_WORLD, TRIAL_WORLDS

FIRST_SEED = 9100
TITLE = "Recover: trial of states"


def measurements(
    worlds: Sequence[World], seed: int, only: Sequence[str]
) -> Iterator[list[Measurement]]:
    """Yield the runs of a seed: of one world after the other, those that belong together."""
    run = partial(Measurement, seed=seed)
    clean = partial(run, name="nothing", change=HEALTHY["as planned"], arm="off")
    usual = partial(run, name=USUAL, change=FAULTS[USUAL])
    has_usual = not only or USUAL in only
    for steps in (STEPS, LENGTHS[0]):
        for world in worlds:
            yield [clean(world=world, steps=steps)]
    for world in worlds if has_usual else ():
        yield [usual(world=world, arm=arm, steps=LENGTHS[0]) for arm in ("auto", "off")]
    names = [name for name in (*FAULTS, *PURPOSES, *HEALTHY) if not only or name in only]
    random.Random(1).shuffle(names)  # a study that is stopped has some of each
    for name in names:
        for world in worlds:
            if name in FAULTS:
                fault = partial(run, world=world, name=name, change=FAULTS[name])
                yield [fault(arm=arm) for arm in ("auto", "off")]
            elif name in HEALTHY:
                healthy = partial(run, name=f"healthy: {name}", change=HEALTHY[name])
                yield [healthy(world=world, arm="auto", steps=HEALTHY_STEPS)]
            elif name not in LOOP_OF_ITS_OWN or world not in (GPT2_WORLD, LIGHTNING_WORLD):
                purpose = partial(run, name=name, change=PURPOSES[name], begin=PURPOSE_BEGIN)
                yield [purpose(world=world, arm="auto", steps=PURPOSE_STEPS)]
    for world in worlds if has_usual else ():
        yield [clean(world=world, steps=LENGTHS[1])]
        yield [usual(world=world, arm="auto", steps=LENGTHS[1])]


def main() -> None:
    """Train the runs that are not in the folder yet, and publish the section."""
    parser = argparse.ArgumentParser(prog="scripts/bench trial")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run is begun later")
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    parser.add_argument("--only", nargs="*", default=[], help="some of the changes")
    parser.add_argument("--worlds", nargs="*", default=[], help="beginnings of their names")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["TRIMTAB_OBSERVER"] = "off"
    worlds = [w for w in TRIAL_WORLDS if not given.worlds or w.name.startswith(tuple(given.worlds))]
    end = time.monotonic() + 60 * given.minutes
    study = Study(worlds)
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(given.folder or spare))
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            for runs in measurements(worlds, seed, given.only):
                _measure(cache, runs, study, is_over=time.monotonic() > end)
    body, headlines = study.section()
    extent = f" --minutes {given.minutes:g}" if math.isfinite(given.minutes) else ""
    names = "".join(f' "{name}"' for name in given.only)
    publish(
        TITLE,
        f"scripts/bench trial --seeds {given.seeds}{extent}{names and ' --only'}{names}",
        body,
        headlines,
    )


def _measure(cache: ResultCache, runs: list[Measurement], study: Study, *, is_over: bool) -> None:
    """Add the outcomes of runs that belong together; the first one decides on the others."""
    first, *others = runs
    if is_over and not cache.has(first.key):
        study.num_missing += 1
        return
    outcome = cache.get(first.key, first.outcome)
    study.add(first, outcome)
    has_acted = bool(outcome["acts"] or outcome["proofs"])
    for run in others:
        if is_over and has_acted and not cache.has(run.key):
            study.num_missing += 1
            continue
        study.add(run, cache.get(run.key, run.outcome) if has_acted else outcome)


if __name__ == "__main__":
    main()
