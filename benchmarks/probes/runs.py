"""One recovering run with a fault, up to some steps after it, and what its report says."""

import contextlib
import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trimtab.core.config import Config, Mode
from trimtab.core.errors import NonFiniteRun, RunStopped
from trimtab.core.events import PROBE_ANSWER
from trimtab.core.findings import HARMLESS
from trimtab.core.run import Run
from trimtab.diagnosis import build_report
from trimtab.journal import RunDirectory, read_journal
from trimtab.judge import Judge
from trimtab.lab.scenarios.catalogue import CLEAN
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.intervention import Base, Intervention
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train

CLEAN_RANKS = "clean-ranks"
"""A run without a fault, on two ranks."""

STEPS, SLOW_STEPS = 320, 800
"""The onset lies between 42 and 62 % of them: steps 134 to 198, or 336 to 496."""

SLOW = ("F04", "F09", "F10")
"""Faults that show in slow signals. The detector of norms compares 15 changes over 8 records each,
and a recovering run records them at every second step: it cannot judge before step 240."""

AFTER = {"F04": 100, "F09": 120, "F10": 120, "F11": 100}
DEFAULT_AFTER = 32
"""Steps after the onset at which a run ends: slow faults take their time."""

_CONFIG = Config().override({"probes.enabled": True})
_SLACK_STEPS = 3
"""A detector may date the onset back a little too far."""


class _Stopped(Exception):
    """The run was stopped: to be resumed, or because it is long enough."""


def measure(kind: str, seed: int, intervention: Intervention | None = None) -> dict[str, Any]:
    """Train one run; what its report says, as JSON values."""
    base = Base.RANKS if kind == CLEAN_RANKS else Base.PLAIN
    name = CLEAN if kind == CLEAN_RANKS else kind
    steps = SLOW_STEPS if kind in SLOW else STEPS
    scenario = Scenario(kind=name, seed=seed, steps=steps, base=base)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        if scenario.required_base is Base.RANKS:
            truths = run_ranks(_on_rank, 2, scenario, folder, timeout=1800)
            truth = {key: value for part in truths for key, value in part.items()}
        else:
            truth = _train(scenario, folder, intervention)
        onset = scenario.onset if intervention is None else intervention.onset
        return read(folder, onset) | {"truth": truth, "onset": onset}


def _on_rank(rank: int, scenario: Scenario, folder: Path) -> dict[str, Any]:
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    dist.barrier()
    return _train(scenario, folder, None)


def _train(scenario: Scenario, folder: Path, planted: Intervention | None) -> dict[str, Any]:
    intervention = planted or scenario.intervention()
    config = dataclasses.replace(
        scenario.setting.config(scenario.required_base, scenario.steps),
        eval_steps=scenario.steps,
        measure=False,
    )
    if intervention is not None:
        config = intervention.settings(config)
    stop, is_resumed = scenario.stop, False
    if stop is not None:
        config = dataclasses.replace(config, checkpoint_steps=stop)
    onset = scenario.onset if planted is None else planted.onset
    is_fault = intervention is not None and intervention.is_fault
    end = onset + AFTER.get(scenario.kind, DEFAULT_AFTER) if is_fault else scenario.steps

    def on_step(done: int, loss: Tensor) -> None:
        if done >= end or (done == stop and not is_resumed):
            raise _Stopped

    for part in (False, True) if stop is not None else (False,):
        is_resumed = part
        with contextlib.suppress(_Stopped, RunStopped, NonFiniteRun):
            train(
                config,
                folder,
                resume=part,
                on_step=on_step,
                mode=Mode.RECOVER,
                guard_config=_CONFIG,
                intervention=intervention,
            )
    return {} if intervention is None else intervention.truth


def read(folder: Path, onset: int) -> dict[str, Any]:
    """The cause of the first incident at or after the onset, with and without the answers."""
    run = read_journal(RunDirectory(folder))
    answers = [event for event in run.block.events if event.kind == PROBE_ANSWER]
    events = tuple(event for event in run.block.events if event.kind != PROBE_ANSWER)
    without = dataclasses.replace(run, block=dataclasses.replace(run.block, events=events))
    return {
        "with": cause_of(run, folder, onset),
        "without": cause_of(without, folder, onset),
        "answers": [{name: event.facts.get(name) for name in _KEPT} for event in answers],
        "step_seconds": _median_step(run),
    }


_KEPT = ("probe", "about", "answer", "sentence", "facts", "steps", "seconds")


def cause_of(run: Run, folder: Path, onset: int) -> str | None:
    """The cause that is named first; None without an incident, "" without a cause."""
    judge = Judge(Config(), plugins=True)
    judge.update(run.block)
    judge.finish()
    report = build_report(judge, run, name=str(folder))
    for one in report.incidents:
        incident = one.incident
        if incident.onset.step < onset - _SLACK_STEPS:
            continue
        if HARMLESS.issuperset(incident.symptoms):
            continue
        return "" if one.cause is None else str(one.cause.id)
    return None


def _median_step(run: Run) -> float:
    column = run.block.column("step_seconds")
    values = torch.from_numpy(column.values[column.finite].copy())
    return float(values.median()) if len(values) else float("nan")
