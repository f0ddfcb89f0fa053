"""The suite: every fault at two grades and five seeds, hard negatives, and their clean twins.

One process per core trains the runs. A suite that was interrupted continues where it stopped.
The index is written once all runs are complete:

    SUITE/suite.json                     the names of all runs, and of the twin of each
    SUITE/F02-severe-seed3/              a run directory with its truth.json
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trimtab.core.config import Config
from trimtab.core.errors import LabError
from trimtab.core.jsonable import to_jsonable
from trimtab.lab.corpus.tokens import CorpusConfig, Progress, prepare_corpus
from trimtab.lab.scenarios.catalogue import CLEAN, FAULTS, HARMLESS, KINDS
from trimtab.lab.scenarios.scenario import CORPUS_BYTES, Grade, Scenario
from trimtab.lab.trainer.intervention import Base
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import EVERY_TENTH, OnTrainStep, TrainOutcome, train, train_in_parts

TRUTH = "truth.json"
_WORLD = 2
_RANKS_SECONDS = 1800.0
"""A run on ranks takes 20 seconds of CPU time; on a busy machine, far more wall-clock time."""

_EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})
"""All signals at every step: which signal moves first is a matter of single steps."""

_WORDING = ("title", "strength_is")
"""Descriptions in truth.json that may be reworded without changing the run."""


def run_trial(
    scenario: Scenario,
    folder: Path,
    *,
    cache_dir: Path | None = None,
    on_step: OnTrainStep | None = None,
) -> Path:
    """Train a scenario in a subfolder of `folder`, unless it is already complete there."""
    run_dir = folder / scenario.name
    if is_trained(scenario, folder):
        return run_dir
    shutil.rmtree(run_dir, ignore_errors=True)  # left by an interrupted trial
    torch.set_num_threads(1)  # sums over two threads differ from those over one in the last bit
    if scenario.required_base is Base.RANKS:
        truths = run_ranks(
            _train_on_rank, _WORLD, scenario, run_dir, cache_dir, timeout=_RANKS_SECONDS
        )
        facts = {name: fact for truth in truths for name, fact in truth.items()}
    else:
        facts = _train_alone(scenario, run_dir, cache_dir, on_step)
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)  # three times the journal's size
    # Last: a folder with a truth is a complete run.
    _write_truth(run_dir, scenario.description() | {"facts": facts})
    return run_dir


def relaunch(
    scenario: Scenario,
    folder: Path,
    *,
    before: int,
    cache_dir: Path | None = None,
    on_step: OnTrainStep | None = None,
) -> TrainOutcome:
    """Go back to the newest good checkpoint of the guard up to a step, and train on without the
    fault, as after its cause was fixed."""
    torch.set_num_threads(1)
    outcome = train(
        scenario.twin().config(),
        folder / scenario.name,
        relaunch_before=before,
        cache_dir=cache_dir,
        on_step=on_step,
        mode=scenario.mode,
        guard_config=EVERY_TENTH,
        checkpoint_seconds=scenario.checkpoint_seconds,
    )
    if not is_trained(scenario, folder):  # it was killed before its end
        _write_truth(folder / scenario.name, scenario.description() | {"facts": {}})
    return outcome


def is_trained(scenario: Scenario, folder: Path) -> bool:
    """Return whether the folder has this run, complete and with the same settings."""
    try:
        truth = read_truth(folder / scenario.name)
    except LabError:
        return False
    expected: dict[str, Any] = to_jsonable(scenario.description())
    for name in ("facts", *_WORDING):
        truth.pop(name, None)
        expected.pop(name, None)
    return truth == expected


def read_truth(run_dir: Path) -> dict[str, Any]:
    """Read the truth of a finished trial; raises LabError if there is none."""
    try:
        truth: dict[str, Any] = json.loads((run_dir / TRUTH).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(
            f"{run_dir} is not a finished run of the lab: {error}; give a folder that "
            "`trimtab lab run` or `trimtab lab suite` made"
        ) from error
    return truth


def _train_on_rank(
    rank: int, scenario: Scenario, run_dir: Path, cache_dir: Path | None
) -> dict[str, Any]:
    if rank == 0:
        shutil.rmtree(run_dir, ignore_errors=True)  # left by lost ranks, if this is the retry
    dist.barrier()
    return _train_alone(scenario, run_dir, cache_dir, None)


def _train_alone(
    scenario: Scenario, run_dir: Path, cache_dir: Path | None, on_step: OnTrainStep | None
) -> dict[str, Any]:
    """Train in this process; return the facts for the truth."""
    intervention = scenario.intervention()
    train_in_parts(
        scenario.config(),
        run_dir,
        stop=scenario.stop,
        cache_dir=cache_dir,
        on_step=on_step,
        mode=scenario.mode,
        guard_config=EVERY_TENTH if scenario.size else _EVERY_STEP,
        intervention=intervention,
        checkpoint_seconds=scenario.checkpoint_seconds,
    )
    return {} if intervention is None else intervention.truth


def _write_truth(run_dir: Path, truth: dict[str, Any]) -> None:
    draft = run_dir / f".{TRUTH}.{os.getpid()}"
    draft.write_text(json.dumps(to_jsonable(truth), indent=1) + "\n", encoding="utf-8")
    draft.replace(run_dir / TRUTH)


INDEX = "suite.json"
_SEEDS = range(5)
_HARMLESS_SEEDS = range(9)
"""Hard negatives have 9 seeds each: with the clean runs, more than 60 runs without a fault."""

_FAST_SEEDS = (1, 2)


def make_suite(
    kinds: Sequence[str] | None = None, seeds: Sequence[int] | None = None
) -> list[Scenario]:
    """List each kind with each seed, and the clean twins; faults are both mild and severe.

    Args:
        kinds: Names from the catalogue, or `clean`; None is every kind.
        seeds: None is seeds 0 to 4, for hard negatives 0 to 8.
    """
    return with_twins(
        Scenario(kind=kind, seed=seed, grade=grade)
        for kind in (KINDS if kinds is None else kinds)
        for grade in (tuple(Grade) if kind in FAULTS else (Grade.SEVERE,))
        for seed in ((_HARMLESS_SEEDS if kind in HARMLESS else _SEEDS) if seeds is None else seeds)
    )


def fast_suite() -> list[Scenario]:
    """List each fault and each hard negative once: about a tenth of the full suite."""
    seeds = {kind: _FAST_SEEDS[place % 2] for place, kind in enumerate([*FAULTS, *HARMLESS])}
    return with_twins(Scenario(kind=kind, seed=seed) for kind, seed in seeds.items())


def with_twins(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return the clean twins of the scenarios, each once, followed by the scenarios."""
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
) -> int:
    """Train all runs that do not exist yet; return how many those were.

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
    missing = [s for s in scenarios if not is_trained(s, folder)]
    done = len(scenarios) - len(missing)
    # Spawned, not forked: after training, a process has threads that would deadlock a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
        trials = [pool.submit(run_trial, s, folder, cache_dir=cache_dir) for s in missing]
        # One failure ends the build at once: the other runs would take hours before it shows.
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
    return len(missing)


def _write_index(folder: Path, scenarios: list[Scenario]) -> None:
    names = {s.name: None if s.kind == CLEAN else s.twin().name for s in scenarios}
    text = json.dumps({"runs": names}, indent=1) + "\n"
    (folder / INDEX).write_text(text, encoding="utf-8")
