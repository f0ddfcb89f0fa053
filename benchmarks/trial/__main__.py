"""scripts/bench trial: what the trial of states restores, proposes and leaves alone.

Each fault is trained clean, in `recover` that waits (`recover.rollback = "off"`) and in `recover`
that restores (`"auto"`), from the same weights and on the same data; where "auto" has done nothing,
waiting is the same run. Purposeful changes and healthy runs are trained with `"auto"`: what counts
is what it does. All worlds come before the next seed, so that a study that is stopped has the same
of each; `--folder` keeps every outcome, to go on later.
"""

import argparse
import itertools
import logging
import math
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import trimtab
from benchmarks.recover.phases import PHASES, Phase
from benchmarks.recover.worlds import Data, Run, World
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish
from benchmarks.trial import practice  # noqa: F401 - registers its changes
from benchmarks.trial.changes import AT, FAULTS, HEALTHY, PURPOSES
from benchmarks.trial.forks import Fork, grow, is_idle_before
from benchmarks.trial.loops import LOOP_OF_ITS_OWN, Job, train
from benchmarks.trial.tables import Study
from benchmarks.trial.worlds import GPT2_WORLD, LIGHTNING_WORLD, TRIAL_WORLDS
from trimtab.core.events import ROLLBACK_PROPOSED, TRIAL, UNDO
from trimtab.live.host.recorder import Recorder
from trimtab.live.recover import trial
from trimtab.live.recover.trial_rule import CLEAR_ERRORS, CLEAR_NOISE, WINDOW, judge

STEPS, EARLIEST = 280, 140
PURPOSE_STEPS, PURPOSE_BEGIN = 160, 100
"""A purposeful change is at step 200, so that run begins at step 100: what counts is what is done,
and a trial that it opens is over before the end."""
LENGTHS, USUAL = (560, 2000), "LR x100 for 5"
"""The updates that a rollback loses cost less in a longer run: one fault is trained in some."""
HEALTHY_STEPS = 500
PART = 12
"""Changes of which the runs of a world are trained together."""
FIRST_SEED = 9100
TITLE = "Recover: trial of states"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of the study."""

    world: World
    name: str
    change: Phase
    seed: int
    arm: str
    """What `recover.rollback` is."""
    steps: int = STEPS
    earliest: int = EARLIEST
    """The step at which a fault begins, at the earliest."""
    trial_every: int = 0
    begin: int = 0
    """The number of the first step, for the change."""

    @property
    def key(self) -> str:
        """The name of its outcome."""
        every = f" {self.trial_every}" if self.trial_every else ""
        return f"{self.world.name} {self.name} {self.steps} {self.seed} {self.arm}{every}"

    @property
    def onset(self) -> int:
        """The step at which a fault begins."""
        return self.earliest + 7 * self.seed % 40

    @property
    def fork_step(self) -> int | None:
        """The step up to which it is a run that nothing befalls; None if there is no such step."""
        step = self.onset if self.name in FAULTS else AT - self.begin
        is_one = self.name in FAULTS or self.name in PURPOSES
        idle = is_one and is_idle_before(self.change, self.world, step, self.begin)
        return step if idle else None

    def outcome(self, fork: Fork | None = None) -> dict[str, Any]:
        """Train, and note what was done."""
        nearness: list[float] = []
        broken: list[str] = []
        scores: list[float] = []
        events: list[tuple[str, int, Any]] = []
        began = time.process_time()
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(trial, "judge", _noting(nearness)),
            mock.patch.object(trial.StateTrial, "_score", _timing(scores)),
            mock.patch.object(Recorder, "event", _listening(events)),
        ):
            try:
                final = self._train(folder, fork)
            except Exception as error:  # a run that ends early is an outcome, too
                final, broken = math.nan, [f"{type(error).__name__}: {error}"[:300]]
        return {
            "final": final,
            "acts": [
                [step, facts["updates_lost"], facts["gain"]]
                for kind, step, facts in events
                if kind == UNDO and "gain" in facts
            ],
            "proofs": [
                [step, facts["why"]]
                for kind, step, facts in events
                if kind == UNDO and "gain" not in facts
            ],
            "asked": [
                [step, facts["gain"], facts["because"]]
                for kind, step, facts in events
                if kind == ROLLBACK_PROPOSED
            ],
            "closed": [[step, facts["outcome"]] for kind, step, facts in events if kind == TRIAL],
            "failed": [str(f)[-300:] for kind, _, f in events if kind == "trimtab failed"] + broken,
            "nearness": max(nearness, default=None),
            "scored": len(scores),
            "score_seconds": round(sum(scores), 3),
            "seconds": round(time.process_time() - began, 3),
        }

    def _train(self, folder: str, fork: Fork | None) -> float:
        """Train one run; returns its loss on data that it has not seen."""
        torch.manual_seed(self.seed)
        run = Run(self.world, model := self.world.model(), self.world.optimizer(model.parameters()))
        run.memory["onset"] = self.onset
        run.memory["rate"] = run.optimizer.param_groups[0]["lr"]
        settings = {"recover.rollback": self.arm, "recover.trial_every": self.trial_every}
        config = trimtab.Config().override(settings)
        train(
            Job(
                run=run,
                change=nothing if fork is not None else self.change,
                fork=fork,
                seed=self.seed,
                steps=self.steps,
                begin=self.begin,
                folder=folder,
                config=config,
            )
        )
        dice = torch.Generator().manual_seed(1)
        model.eval()
        with torch.no_grad():
            losses = [
                float(self.world.loss(model, self.world.draw(Data(), dice))) for _ in range(64)
            ]
        return statistics.fmean(losses)


def _noting(nearness: list[float]) -> Any:
    """Return the rule, which notes how near the older state came to winning at each window.

    At 1 its lead is what the rule demands; it must be that twice, and nothing speak for purpose.
    """

    def judged(gaps: Any, old_losses: Any, recorded: Any, *rest: Any) -> Any:
        last = gaps[-WINDOW:]
        if len(gaps) % WINDOW == 0 and all(map(math.isfinite, old_losses)):
            windows = [old_losses[at : at + WINDOW] for at in range(0, len(old_losses), WINDOW)]
            noise = statistics.fmean(map(statistics.stdev, windows))
            error = statistics.stdev(last) / math.sqrt(WINDOW)
            demand = max(CLEAR_NOISE * noise, CLEAR_ERRORS * error, 1e-12)
            nearness.append(statistics.fmean(last) / demand)
        return judge(gaps, old_losses, recorded, *rest)

    return judged


def _listening(events: list[tuple[str, int, Any]]) -> Any:
    """Return what journals an event, which notes it."""
    event = Recorder.event

    def noted(self: Any, kind: str, step: int, facts: Any = None) -> Any:
        events.append((kind, step, facts))
        return event(self, kind, step, facts)

    return noted


def _timing(scores: list[float]) -> Any:
    """Return what scores a batch, which notes the processor time of each."""
    score = trial.StateTrial._score

    def timed(self: Any, found: Any) -> Any:
        began = time.process_time()
        try:
            return score(self, found)
        finally:
            scores.append(time.process_time() - began)

    return timed


def nothing(run: Run, step: int) -> None:
    """A run that nothing befalls."""


def measurements(
    worlds: Sequence[World], seed: int, only: Sequence[str]
) -> Iterator[list[Measurement]]:
    """Yield the runs of a seed: of one world after the other, those that belong together."""

    def run(
        world: World, name: str, change: Phase, arm: str, steps: int = STEPS, begin: int = 0
    ) -> Measurement:
        return Measurement(
            world=world, name=name, change=change, seed=seed, arm=arm, steps=steps, begin=begin
        )

    for steps in (STEPS, LENGTHS[0]):
        for world in worlds:
            yield [run(world, "nothing", nothing, "off", steps)]
    for world in worlds if not only or USUAL in only else ():
        yield [run(world, USUAL, FAULTS[USUAL], arm, LENGTHS[0]) for arm in ("auto", "off")]
    # A study that is stopped has some of each; most phases, measured elsewhere, come last.
    last = [name for number, name in enumerate(PHASES) if number % 4 and name in PURPOSES]
    first = [name for name in (*FAULTS, *PURPOSES, *HEALTHY) if name not in last]
    random.Random(1).shuffle(first)
    for name in (*first, *last):
        for world in worlds if not only or name in only else ():
            if name in HEALTHY:
                yield [run(world, f"healthy: {name}", HEALTHY[name], "auto", HEALTHY_STEPS)]
            elif name in FAULTS:
                yield [run(world, name, FAULTS[name], arm) for arm in ("auto", "off")]
            elif name not in LOOP_OF_ITS_OWN or world not in (GPT2_WORLD, LIGHTNING_WORLD):
                yield [run(world, name, PURPOSES[name], "auto", PURPOSE_STEPS, PURPOSE_BEGIN)]
    for world in worlds if not only or USUAL in only else ():
        yield [run(world, "nothing", nothing, "off", LENGTHS[1])]
        yield [run(world, USUAL, FAULTS[USUAL], "auto", LENGTHS[1])]


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
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(given.folder or spare))
        study = Study(
            worlds,
            steps=STEPS,
            lengths=LENGTHS,
            purpose_steps=PURPOSE_STEPS,
            healthy_steps=HEALTHY_STEPS,
            usual=USUAL,
        )
        for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
            for part in batched(measurements(worlds, seed, given.only), PART * len(worlds)):
                if time.monotonic() < end:
                    _measure_together(cache, part)
                for runs in part:
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


def batched(runs: Iterator[list[Measurement]], size: int) -> Iterator[list[list[Measurement]]]:
    """Yield them in parts of a size."""
    while part := list(itertools.islice(runs, size)):
        yield part


def _measure_together(cache: ResultCache, part: list[list[Measurement]]) -> None:
    """Train the runs that have their first steps in common, as far as it shows that they have."""
    for which in (0, 1):
        alike: dict[Any, list[Measurement]] = {}
        for runs in part:
            is_needed = len(runs) > which and not cache.has(runs[which].key)
            if is_needed and which == 1:
                is_needed = cache.has(runs[0].key) and _has_acted(cache.get(runs[0].key, dict))
            if is_needed and (step := runs[which].fork_step) is not None:
                one = runs[which]
                same = (one.world.name, one.seed, one.arm, one.steps, one.begin, step)
                alike.setdefault(same, []).append(one)
        for (*_, step), branches in alike.items():
            if len(branches) > 1:
                _grow(cache, step, branches)


def _grow(cache: ResultCache, step: int, branches: list[Measurement]) -> None:
    def train_all(fork: Fork) -> None:
        outcome = branches[0].outcome(fork)
        cache.get(branches[fork.which].key, lambda: outcome)

    grow(step, [branch.change for branch in branches], train_all)


def _has_acted(outcome: dict[str, Any]) -> bool:
    return bool(outcome["acts"] or outcome["proofs"])


def _measure(cache: ResultCache, runs: list[Measurement], study: Study, *, is_over: bool) -> None:
    """Add the outcomes of runs that belong together; the first one decides on the others."""
    first, *others = runs
    if is_over and not all(cache.has(run.key) for run in runs[:1]):
        study.miss(first.name)
        return
    outcome = cache.get(first.key, first.outcome)
    study.add(first.world, first.name, first.seed, first.arm, first.steps, outcome)
    has_acted = _has_acted(outcome)
    for run in others:
        if is_over and has_acted and not cache.has(run.key):
            study.miss(run.name)
            continue
        waited = cache.get(run.key, run.outcome) if has_acted else outcome
        study.add(run.world, run.name, run.seed, run.arm, run.steps, waited)


if __name__ == "__main__":
    main()
