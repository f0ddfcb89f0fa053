"""Contenders: trimtab, and rules that others have published, written anew from their facts.

A rule that only raises alarms is read like this: it has fired or not, its first alarm is the onset,
and it asks to act if it is still firing at the end of the log.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agents.answers import Answer, Tool
from benchmarks.agents.cases import ACT
from benchmarks.detect.peers import OLMO_SCORE, PEERS, SKIP, ZSCORE
from trimtab.core.block import Block, BoolArray, FloatArray
from trimtab.core.errors import TrimtabError
from trimtab.core.signals import LOSS
from trimtab.diagnosis import diagnose
from trimtab.readers import read_log

END_RECORDS = 5
"""An alarm within so many records of the end still stands."""

WANDB_ROWS, WANDB_LEAST, WANDB_CHANGE, WANDB_TAIL = 500, 10, 0.05, 10
"""`diagnose_run` of wandb/wandb-mcp-server, commit 0b2dff3d: 500 rows; the mean of the second half
against that of the first; the mean of the last tenth; non-finite values are counted and left out.
In the snapshot of April 2026 these were the first 500 rows, later 500 over the whole run."""

WANDB_SAMPLED = "W&B diagnose_run, 500 rows of all"

MARIN_RECENT, MARIN_HOUR, MARIN_LEAST, MARIN_FLOOR, MARIN_SIGMAS = 5, 60, 20, 0.05, 6.0
"""`TrainingLossSpike` of marin-community/marin, docs/ops/training-loss-spike-alert.md, commit
1bb840b7: the lowest loss of 5 minutes over mean + max(0.05, 6 deviations) of the hour before, or a
loss that is not finite. A log has no minutes: a record is taken for one."""


def ask_trimtab(path: Path, rules: str = "trimtab") -> Answer:
    """Return what `trimtab diagnose PATH --brief` says."""
    try:
        brief = diagnose(path, rules=rules).brief()
    except TrimtabError as error:
        raise ValueError(str(error)) from error
    found: Mapping[str, Any] | None = brief.get("incident")
    act = {"none": "continue"}.get(brief["act"], brief["act"])
    return Answer(
        verdict="healthy" if found is None else "incident",
        onset=None if found is None else found["onset"],
        named=None if found is None else found["class"],
        act=act if act in ("continue", "wait", *ACT) else "stop",
    )


def wandb_diagnosis(loss: FloatArray) -> dict[str, Any]:
    """Return what W&B's rule says about some rows of a loss."""
    finite = loss[np.isfinite(loss)]
    counted = finite if not np.isinf(loss).any() else loss[~np.isnan(loss)]
    answer: dict[str, Any] = {"diagnosis": "insufficient_data", "recommendations": []}
    if len(counted) >= WANDB_LEAST:
        half, tail = len(counted) // 2, max(1, len(counted) // WANDB_TAIL)
        with np.errstate(invalid="ignore"):
            first, second = counted[:half].mean(), counted[half:].mean()
        trend = "converged"
        if second < first * (1 - WANDB_CHANGE):
            near = abs(counted[-tail:].mean() - second) / max(abs(second), 1e-8) < WANDB_CHANGE
            trend = "converged" if near else "training"
        elif second > first * (1 + WANDB_CHANGE):
            trend = "diverging"
        answer = {
            "diagnosis": trend,
            "loss_stats": {
                "key": "loss",
                "first_value": round(float(counted[0]), 6),
                "last_value": round(float(counted[-1]), 6),
                "min_value": round(float(counted.min()), 6),
                "tail_mean": round(float(counted[-tail:].mean()), 6),
                "overall_mean": round(float(counted.mean()), 6),
                "total_steps": len(counted),
            },
            "recommendations": [],
        }
    said: list[str] = answer["recommendations"]
    if answer["diagnosis"] == "diverging":
        said.append("Loss is increasing: consider reducing learning rate.")
    if answer["diagnosis"] == "converged":
        said.append("Training appears converged: run can likely be stopped to save compute.")
    num_lost = len(loss) - len(finite)
    answer["nan_warnings"] = {"loss": num_lost} if num_lost else None
    if num_lost:
        said.append("NaN/Inf values found: check for numerical instability.")
    return answer


def wandb_answer(found: Mapping[str, Any], *, stops_converged: bool = True) -> Answer:
    """Return what an agent makes of that; it may not believe that a run can be stopped."""
    if found["nan_warnings"]:
        return Answer(verdict="incident", named="dead", act="stop")
    if found["diagnosis"] == "diverging":
        return Answer(verdict="incident", named="divergent", act="lower LR")
    can_stop = found["diagnosis"] == "converged" and stops_converged
    act = "stop" if can_stop else "continue"
    return Answer(verdict="healthy", act=act)


def first_rows(loss: FloatArray) -> FloatArray:
    return loss[:WANDB_ROWS]


def sampled_rows(loss: FloatArray) -> FloatArray:
    """Return 500 rows over the whole run, evenly."""
    if len(loss) <= WANDB_ROWS:
        return loss
    chosen: FloatArray = loss[np.linspace(0, len(loss) - 1, WANDB_ROWS).astype(int)]
    return chosen


def ask_wandb(
    path: Path, rows: Callable[[FloatArray], FloatArray], *, stops_converged: bool = True
) -> Answer:
    """Return what W&B's rule says; it does not date anything."""
    _, loss = _losses(path)
    return wandb_answer(wandb_diagnosis(rows(loss)), stops_converged=stops_converged)


def marin_alarms(loss: FloatArray) -> BoolArray:
    """Return the records at which Marin's alert stands."""
    alarms = np.zeros(len(loss), dtype=np.bool_)
    for row in range(len(loss)):
        recent = loss[max(row + 1 - MARIN_RECENT, 0) : row + 1]
        before = loss[max(row + 1 - MARIN_HOUR, 0) : max(row + 1 - MARIN_RECENT, 0)]
        if len(before) < MARIN_LEAST:
            continue
        if not np.isfinite(recent).all():
            alarms[row] = True
            continue
        deviation = before.std(ddof=1)
        band = MARIN_SIGMAS * deviation if np.isfinite(deviation) else 0.0
        alarms[row] = recent.min() > before.mean() + max(MARIN_FLOOR, band)
    return alarms


def alarm_answer(steps: "np.ndarray[Any, Any]", alarms: BoolArray) -> Answer:
    """Return a rule's alarms as an answer."""
    rows = np.flatnonzero(alarms)
    if not len(rows):
        return Answer(verdict="healthy")
    stands = int(rows[-1]) >= len(alarms) - END_RECORDS
    act = "stop" if stands else "continue"
    return Answer(verdict="incident", onset=int(steps[rows[0]]), act=act)


def ask_marin(path: Path) -> Answer:
    steps, loss = _losses(path)
    with np.errstate(invalid="ignore"):
        return alarm_answer(steps, marin_alarms(loss))


def ask_rule(path: Path, name: str) -> Answer:
    """Return what one of the rules of `scripts/bench detect` says."""
    block = _block(path)
    alarms = next(rule for rule in PEERS if rule.name == name).watch(block)
    return alarm_answer(block.step, alarms)


def contenders() -> dict[str, Tool]:
    """Return every tool by the name that the table has for it."""
    return {
        "trimtab": ask_trimtab,
        "textbook rules": partial(ask_trimtab, rules="textbook"),
        "W&B diagnose_run, first 500 rows": partial(ask_wandb, rows=first_rows),
        WANDB_SAMPLED: partial(ask_wandb, rows=sampled_rows),
        f"{WANDB_SAMPLED}, 'converged' left out": partial(
            ask_wandb, rows=sampled_rows, stops_converged=False
        ),
        "OLMo-core, 6 sigma of 128": partial(ask_rule, name=SKIP),
        "Marin's Grafana alert": ask_marin,
        "z-score 3 of 30 (W&B automation)": partial(ask_rule, name=ZSCORE),
        "z-score 7 of 1000 (OLMo 2)": partial(ask_rule, name=OLMO_SCORE),
    }


def _block(path: Path) -> Block:
    try:
        return read_log(path).block
    except TrimtabError as error:
        raise ValueError(str(error)) from error


def _losses(path: Path) -> tuple["np.ndarray[Any, Any]", FloatArray]:
    block = _block(path)
    column = block.column(LOSS)
    return block.step[column.present], column.values[column.present]
