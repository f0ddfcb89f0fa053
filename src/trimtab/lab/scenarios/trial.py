"""A trial: one scenario trained to its end, its journal and the truth beside it.

FOLDER/F02-severe-seed3/
    trimtab/        the journal, the manifest, the incidents: a run directory like any other
    truth.json      what was done, when, how hard, where; written last, so it marks the end
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.core.config import Config
from trimtab.core.errors import LabError
from trimtab.core.jsonable import to_jsonable
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.disturbance import Base
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train

TRUTH = "truth.json"
_WORLD = 2
_RANKS_SECONDS = 1800.0
"""A run on ranks takes 20 seconds of CPU; by the clock of a machine with other work, far more."""

_WATCHING = Config.from_dict({"live": {"telemetry_every": 1}})
"""All signals at every step: what moves first is a question of single steps."""

Steps = Callable[[int], None]
"""Told how many steps are done."""


class _Stopped(Exception):
    """The run was ended from outside, to be resumed."""


def run_trial(
    scenario: Scenario, folder: Path, *, cache_dir: Path | None = None, on_step: Steps | None = None
) -> Path:
    """Train a scenario in a folder of its own; one that is there and whole is left as it is."""
    run_dir = folder / scenario.name
    if is_done(scenario, folder):
        return run_dir
    shutil.rmtree(run_dir, ignore_errors=True)  # of a trial that was stopped half-way
    torch.set_num_threads(1)  # the sums of two threads differ from those of one in the last bit
    if scenario.needs is Base.RANKS:
        told = run_ranks(
            _train_on_rank, _WORLD, scenario, run_dir, cache_dir, timeout=_RANKS_SECONDS
        )
        done = {name: fact for truth in told for name, fact in truth.items()}
    else:
        done = _train_alone(scenario, run_dir, cache_dir, on_step)
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)  # three times the journal's size
    _write_truth(run_dir, scenario.described() | {"facts": done})
    return run_dir


def is_done(scenario: Scenario, folder: Path) -> bool:
    """Whether the folder has this very run, to its end: other settings may have the same name."""
    try:
        truth = read_truth(folder / scenario.name)
    except LabError:
        return False
    truth.pop("facts", None)
    return bool(truth == to_jsonable(scenario.described()))


def read_truth(run_dir: Path) -> dict[str, Any]:
    """What was true of a trial; raises LabError where there is none."""
    try:
        truth: dict[str, Any] = json.loads((run_dir / TRUTH).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{run_dir} is no finished run of the lab: {error}") from error
    return truth


def _train_on_rank(
    rank: int, scenario: Scenario, run_dir: Path, cache_dir: Path | None
) -> dict[str, Any]:
    if rank == 0:
        shutil.rmtree(run_dir, ignore_errors=True)  # of ranks that were lost; these are the second
    dist.barrier()
    return _train_alone(scenario, run_dir, cache_dir, None)


def _train_alone(
    scenario: Scenario, run_dir: Path, cache_dir: Path | None, on_step: Steps | None
) -> dict[str, Any]:
    """Train in this process, in two parts if the scenario has a resume; what was done to it."""
    disturbance = scenario.disturbance()
    stop = scenario.stop

    def watch_steps(done: int, loss: Tensor) -> None:
        if on_step is not None:
            on_step(done)
        if done == stop:
            raise _Stopped

    def go(*, resume: bool) -> None:
        train(
            scenario.config(),
            run_dir,
            resume=resume,
            cache_dir=cache_dir,
            on_step=watch_steps,
            mode=scenario.mode,
            watching=_WATCHING,
            disturbance=disturbance,
        )

    if stop is None:
        go(resume=False)
    else:
        with contextlib.suppress(_Stopped):
            go(resume=False)
        go(resume=True)
    return {} if disturbance is None else disturbance.truth


def _write_truth(run_dir: Path, truth: dict[str, Any]) -> None:
    draft = run_dir / f".{TRUTH}.{os.getpid()}"
    draft.write_text(json.dumps(to_jsonable(truth), indent=1) + "\n", encoding="utf-8")
    draft.replace(run_dir / TRUTH)
