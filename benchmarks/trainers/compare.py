"""One trainer in one setting: without trimtab, observed, protected, recovering."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.trainers.setting import NAN_STEP, Outcome, Plan, Setting, Train
from trimtab.lab.trainer.local_ranks import run_ranks

RunPlan = Callable[[Path, Setting, Plan], list[Outcome]]
"""A run on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What was found in a setting; empty texts mean that all is well."""

    observe: str
    """How the bits differ from those of the run without trimtab."""
    protect: str
    """What a NaN step did other than to leave weights and moments as they were."""
    recover: str
    """How a healthy run differs from the same one in `protect`."""
    reads: str
    """Host reads that trimtab has added to a step, in `observe` and `protect`."""


def on_ranks(train: Train) -> RunPlan:
    """Runs on forked ranks; also one rank, because accelerate keeps state for a whole process."""

    def run(folder: Path, setting: Setting, plan: Plan) -> list[Outcome]:
        return run_ranks(train, setting.ranks, folder, setting, plan, timeout=600)

    return run


def compare(run: RunPlan, setting: Setting) -> Compared:
    """Train the five runs of a setting; what fails does not stop the rest."""
    with tempfile.TemporaryDirectory() as name:
        found: dict[Plan, list[Outcome] | str] = {}
        for plan in (
            Plan(mode=None),
            Plan(mode="observe"),
            Plan(mode="protect", has_nan=True),
            Plan(mode="protect"),
            Plan(mode="recover"),
        ):
            folder = Path(name) / f"{plan.mode}-{plan.has_nan}"
            found[plan] = _outcomes(partial(run, folder, setting, plan))
    plain, observed, protected, straight, recovering = found.values()
    return Compared(
        observe=_differ(plain, observed),
        protect=_held_only(protected),
        recover=_differ(straight, recovering),
        reads=_more_reads(plain, observed) or _more_reads(plain, protected),
    )


def _outcomes(run: Callable[[], list[Outcome]]) -> list[Outcome] | str:
    try:
        return run()
    except Exception as error:
        last = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {last[-1] if last else ''}"[:200]


def _differ(one: list[Outcome] | str, other: list[Outcome] | str) -> str:
    if isinstance(one, str) or isinstance(other, str):
        return one if isinstance(one, str) else str(other)
    return "" if [o.bits for o in one] == [o.bits for o in other] else "different bits"


def _held_only(protected: list[Outcome] | str) -> str:
    if isinstance(protected, str):
        return protected
    wrong = [one.held for one in protected if one.held != (NAN_STEP,)]
    return f"steps held: {list(wrong[0])}" if wrong else ""


def _more_reads(plain: list[Outcome] | str, watched: list[Outcome] | str) -> str:
    if isinstance(plain, str) or isinstance(watched, str):
        return "not counted"
    more = [w.reads - p.reads for p, w in zip(plain, watched, strict=True)]
    return "" if max(more) <= 0 else f"{max(more)} in 8 steps"
