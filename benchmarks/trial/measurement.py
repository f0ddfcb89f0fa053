"""One run of the study: what is trained, and what is noted of it."""

import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import trimtab
from benchmarks.recover.worlds import Change, Data, Run, World
from benchmarks.trial.loops import Job, train
from trimtab.core.events import ROLLBACK_PROPOSED, TRIAL, UNDO
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.recover import trial
from trimtab.live.recover.trial_rule import CLEAR_ERRORS, CLEAR_NOISE, WINDOW, judge

STEPS, EARLIEST = 280, 140
"""Steps of a run with a fault, and the first step at which one may begin."""
PURPOSE_STEPS, PURPOSE_BEGIN = 160, 100
"""A purposeful change is at step 200, so that run begins at step 100: what counts is what is done,
and a trial that it opens is over before the end."""
LENGTHS, USUAL = (560, 2000), "LR x100 for 5"
"""The updates that a rollback loses cost less in a longer run: one fault is trained in some."""
HEALTHY_STEPS = 500


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of the study."""

    world: World
    name: str
    change: Change
    seed: int
    arm: str
    """What `recover.rollback` is."""
    steps: int = STEPS
    begin: int = 0
    """The number of the first step, for the change."""

    @property
    def key(self) -> str:
        """The name of its outcome."""
        return f"{self.world.name} {self.name} {self.steps} {self.seed} {self.arm}"

    def outcome(self) -> dict[str, Any]:
        """Train, and note what was done."""
        nearness: list[float] = []
        broken: list[str] = []
        score = trial.StateTrial._score
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(trial, "judge", _noting(nearness)),
            mock.patch.object(
                trial.StateTrial, "_score", autospec=True, side_effect=score
            ) as scored,
        ):
            try:
                final = self._train(folder)
            except Exception as error:  # a run that ends early is an outcome, too
                final, broken = math.nan, [f"{type(error).__name__}: {error}"[:300]]
            events = read_journal(RunDirectory(Path(folder))).block.events
        undos = [event for event in events if event.kind == UNDO]
        return {
            "final": final,
            "acts": [
                [one.step, one.facts["updates_lost"], one.facts["gain"]]
                for one in undos
                if "gain" in one.facts
            ],
            "proofs": [[one.step, one.facts["why"]] for one in undos if "gain" not in one.facts],
            "asked": [
                [one.step, one.facts["gain"], one.facts["because"]]
                for one in events
                if one.kind == ROLLBACK_PROPOSED
            ],
            "closed": [[one.step, one.facts["outcome"]] for one in events if one.kind == TRIAL],
            "failed": [str(one.facts)[-300:] for one in events if one.kind == "trimtab failed"]
            + broken,
            "nearness": max(nearness, default=None),
            "scored": scored.call_count,
        }

    def _train(self, folder: str) -> float:
        """Train; return the loss on data that the run has not seen."""
        torch.manual_seed(self.seed)
        run = Run(self.world, model := self.world.model(), self.world.optimizer(model.parameters()))
        run.memory["onset"] = EARLIEST + 7 * self.seed % 40
        run.memory["rate"] = run.optimizer.param_groups[0]["lr"]
        job = Job(
            run=run,
            change=self.change,
            seed=self.seed,
            steps=self.steps,
            begin=self.begin,
            folder=folder,
            config=trimtab.Config().override({"recover.rollback": self.arm}),
        )
        train(job)
        dice = torch.Generator().manual_seed(1)
        model.eval()
        with torch.no_grad():
            return statistics.fmean(
                float(self.world.loss(model, self.world.draw(Data(), dice))) for _ in range(64)
            )


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
