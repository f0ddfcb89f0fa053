"""The suite: every fault at two grades and five seeds, their clean twins, and hard negatives.

It is built by as many processes as there are cores; a suite that was stopped goes on where it was.
The index is written when all runs are there:

    SUITE/suite.json                     the names of all runs, and of the twin of each
    SUITE/F02-severe-seed3/              a run directory with its truth.json
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from trimtab.lab.corpus.tokens import CorpusConfig, Progress, prepare_corpus
from trimtab.lab.scenarios.catalogue import CLEAN, FAULTS, HARMLESS, NATURAL
from trimtab.lab.scenarios.scenario import CORPUS_BYTES, VOCAB_SIZE, Grade, Scenario
from trimtab.lab.scenarios.trial import is_done, run_trial

INDEX = "suite.json"
_SEEDS = range(5)
_CONTROL_SEEDS = range(9)
"""Hard negatives have 9 seeds each: with the clean runs, more than 60 runs without any fault."""

_FAST_SEEDS = (1, 2)
_TINY_KINDS = ("F02", "F05", "F11", "F12", "F13w", "F18", "F23", "cooldown", "right-resume")
_TINY_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build has done."""

    runs: int
    made: int
    """Those that were not there yet."""


def full_suite() -> list[Scenario]:
    """Every fault twice per seed, naturals once, hard negatives, and all twins."""
    runs = [
        Scenario(kind=kind, seed=seed, grade=grade)
        for kind in FAULTS
        for grade in Grade
        for seed in _SEEDS
    ]
    runs += [Scenario(kind=kind, seed=seed) for kind in NATURAL for seed in _SEEDS]
    runs += [Scenario(kind=kind, seed=seed) for kind in HARMLESS for seed in _CONTROL_SEEDS]
    return with_twins(runs)


def fast_suite() -> list[Scenario]:
    """Each fault once: half a minute of ten, for trying things out."""
    seeds = {kind: _FAST_SEEDS[place % 2] for place, kind in enumerate([*FAULTS, *HARMLESS])}
    return with_twins(Scenario(kind=kind, seed=seed) for kind, seed in seeds.items())


def tiny_suite() -> list[Scenario]:
    """12 short runs that touch every part of the lab but ranks."""
    return with_twins(Scenario(kind=kind, seed=1, steps=_TINY_STEPS) for kind in _TINY_KINDS)


def with_twins(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """The scenarios and, in front of them, the clean run of each, once."""
    wanted = list(scenarios)
    twins = (scenario.twin() for scenario in wanted)
    return list(dict.fromkeys((*twins, *wanted)))  # a dict keeps the order


def build_suite(
    scenarios: list[Scenario],
    folder: Path,
    *,
    workers: int | None = None,
    cache_dir: Path | None = None,
    on_text: Progress | None = None,
    on_run: Callable[[int, int], None] | None = None,
) -> Built:
    """Train all runs that are not there yet.

    Args:
        scenarios: What to train.
        folder: Where; each run gets a folder of its own in it.
        workers: Processes; None is one per core.
        cache_dir: Where token files are kept; None is the user's cache.
        on_text: Told how far the text is prepared, if it has to be.
        on_run: Told how many of all runs are there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Once and here: processes that begin together would all find the cache empty.
    prepare_corpus(
        CorpusConfig(vocab_size=VOCAB_SIZE, max_bytes=CORPUS_BYTES),
        cache_dir=cache_dir,
        progress=on_text,
    )
    missing = [s for s in scenarios if not is_done(s, folder)]
    done = len(scenarios) - len(missing)
    # Spawned, not forked: a process that has trained leaves threads that a fork would wait for.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
        trials = [pool.submit(run_trial, s, folder, cache_dir=cache_dir) for s in missing]
        try:
            for trial in as_completed(trials):
                trial.result()
                done += 1
                if on_run is not None:
                    on_run(done, len(scenarios))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _write_index(folder, scenarios)
    return Built(runs=len(scenarios), made=len(missing))


def _write_index(folder: Path, scenarios: list[Scenario]) -> None:
    names = {s.name: None if s.kind == CLEAN else s.twin().name for s in scenarios}
    text = json.dumps({"runs": names}, indent=1) + "\n"
    (folder / INDEX).write_text(text, encoding="utf-8")
