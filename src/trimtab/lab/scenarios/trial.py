"""A trial: one scenario, trained to its end, with its journal and its truth.

FOLDER/F02-severe-seed3/
    trimtab/        the journal, the manifest, the incidents: an ordinary run directory
    truth.json      what was done, when, how strongly, where; written last, so it marks completion
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
from trimtab.lab.trainer.intervention import Base
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train

TRUTH = "truth.json"
_WORLD = 2
_RANKS_SECONDS = 1800.0
"""A run on ranks takes 20 seconds of CPU time; on a busy machine, far more wall-clock time."""

_EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})
"""All signals at every step: which signal moves first is a matter of single steps."""

_WORDING = ("title", "strength_is")
"""Descriptions in truth.json that may be reworded without changing the run."""

OnStep = Callable[[int], None]
"""Takes the number of steps done."""


class _Stopped(Exception):
    """The run was stopped in order to be resumed."""


def run_trial(
    scenario: Scenario,
    folder: Path,
    *,
    cache_dir: Path | None = None,
    on_step: OnStep | None = None,
) -> Path:
    """Train a scenario in a subfolder of `folder`, unless it is already complete there."""
    run_dir = folder / scenario.name
    if is_done(scenario, folder):
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
    _write_truth(run_dir, scenario.description() | {"facts": facts})
    return run_dir


def is_done(scenario: Scenario, folder: Path) -> bool:
    """Whether the folder has this run, complete and with the same settings."""
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
    """The truth of a finished trial; raises LabError if there is none."""
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
    scenario: Scenario, run_dir: Path, cache_dir: Path | None, on_step: OnStep | None
) -> dict[str, Any]:
    """Train in this process, in two parts if there is a resume; return the facts for the truth."""
    intervention = scenario.intervention()
    stop = scenario.stop

    def after_step(done: int, loss: Tensor) -> None:
        if on_step is not None:
            on_step(done)
        if done == stop:
            raise _Stopped

    def train_part(*, resume: bool) -> None:
        train(
            scenario.config(),
            run_dir,
            resume=resume,
            cache_dir=cache_dir,
            on_step=after_step,
            mode=scenario.mode,
            guard_config=_EVERY_STEP,
            intervention=intervention,
        )

    if stop is None:
        train_part(resume=False)
    else:
        with contextlib.suppress(_Stopped):
            train_part(resume=False)
        train_part(resume=True)
    return {} if intervention is None else intervention.truth


def _write_truth(run_dir: Path, truth: dict[str, Any]) -> None:
    draft = run_dir / f".{TRUTH}.{os.getpid()}"
    draft.write_text(json.dumps(to_jsonable(truth), indent=1) + "\n", encoding="utf-8")
    draft.replace(run_dir / TRUTH)
