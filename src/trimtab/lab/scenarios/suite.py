"""The suite: every fault at two grades and five seeds, hard negatives, and their clean twins.

One process per core trains the runs. A suite that was interrupted continues where it stopped.
The index is written once all runs are complete:

    SUITE/suite.json                     the names of all runs, and of the twin of each
    SUITE/F02-severe-seed3/              a run directory with its truth.json
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from trimtab.lab.corpus.tokens import CorpusConfig, Progress, prepare_corpus
from trimtab.lab.scenarios.catalogue import CLEAN, FAULTS, HARMLESS, KINDS
from trimtab.lab.scenarios.scenario import CORPUS_BYTES, Grade, Scenario, Shape
from trimtab.lab.scenarios.trial import is_done, run_trial

INDEX = "suite.json"
_SEEDS = range(5)
_HARMLESS_SEEDS = range(9)
"""Hard negatives have 9 seeds each: with the clean runs, more than 60 runs without a fault."""

_FAST_SEEDS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The result of a build."""

    runs: int
    """All runs of the suite."""

    trained: int
    """Runs that this build trained; the others already existed."""


def make_suite(
    kinds: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    shape: Shape = Shape.SMALL,
) -> list[Scenario]:
    """Each kind with each seed, and the clean twins; faults are both mild and severe.

    Args:
        kinds: Names from the catalogue, or `clean`; None is every kind.
        seeds: None is seeds 0 to 4, for hard negatives 0 to 8.
        shape: The shape of all models.
    """
    return with_twins(
        Scenario(kind=kind, seed=seed, grade=grade, shape=shape)
        for kind in (KINDS if kinds is None else kinds)
        for grade in (tuple(Grade) if kind in FAULTS else (Grade.SEVERE,))
        for seed in (_default_seeds(kind) if seeds is None else seeds)
    )


def fast_suite() -> list[Scenario]:
    """Each fault and each hard negative once: about a tenth of the full suite."""
    seeds = {kind: _FAST_SEEDS[place % 2] for place, kind in enumerate([*FAULTS, *HARMLESS])}
    return with_twins(Scenario(kind=kind, seed=seed) for kind, seed in seeds.items())


def _default_seeds(kind: str) -> range:
    return _HARMLESS_SEEDS if kind in HARMLESS else _SEEDS


def with_twins(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """The clean twins of the scenarios, each once, followed by the scenarios."""
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
    """Train all runs that do not exist yet.

    Args:
        scenarios: What to train.
        folder: Holds one folder per run.
        workers: Number of processes; None is one per core.
        cache_dir: Where token files are kept; None is the user's cache.
        on_text: Called with the progress of tokenizing, if the corpus is not in the cache.
        on_run: Called with the number of complete runs and the total.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Once, before the processes start: all of them would find the cache empty.
    for vocab_size in sorted({scenario.vocab_size for scenario in scenarios}):
        prepare_corpus(
            CorpusConfig(vocab_size=vocab_size, max_bytes=CORPUS_BYTES),
            cache_dir=cache_dir,
            progress=on_text,
        )
    missing = [s for s in scenarios if not is_done(s, folder)]
    done = len(scenarios) - len(missing)
    # Spawned, not forked: after training, a process has threads that would deadlock a fork.
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
    return Built(runs=len(scenarios), trained=len(missing))


def _write_index(folder: Path, scenarios: list[Scenario]) -> None:
    names = {s.name: None if s.kind == CLEAN else s.twin().name for s in scenarios}
    text = json.dumps({"runs": names}, indent=1) + "\n"
    (folder / INDEX).write_text(text, encoding="utf-8")
