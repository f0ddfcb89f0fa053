"""Replay in a fresh process: where to begin, which batches, and what to look at.

plan = trimtab.replay("runs/x1", incident=1)
checkpoints.resume(before=plan.step)          # the newest checkpoint from before the incident
for position in plan.positions:               # its batches, then those of the incident
    ...
with plan.looking_for_nonfinite(model) as found:
    model(batch).loss.backward()
print(found)                                  # module and operation
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.core.errors import ConfigError
from trimtab.diagnosis import diagnose
from trimtab.explain.causes.experiments import ProposedExperiment, propose
from trimtab.explain.context import answers_about
from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal import RunDirectory
from trimtab.report.run_report import RunReport
from trimtab.state.checkpoints.index import CheckpointIndex, Verdict

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is needed to do the steps of an incident again."""

    incident: int
    step: int
    """The first step of the incident."""
    last_step: int
    checkpoint: Path | None
    """The newest checkpoint from before it that is not bad; None if there is none."""
    first_step: int
    """The step that comes next from the checkpoint; 0 without one."""
    positions: range
    """The data positions from the checkpoint to the end of the incident."""
    seed: int | None
    answers: dict[str, str]
    """What experiments have found out already, by their names."""
    proposal: ProposedExperiment | None
    """The experiment that would tell the first two causes apart best."""

    @contextmanager
    def looking_for_nonfinite(self, model: "nn.Module") -> Iterator[dict[str, Any]]:
        """Look at each operation in here; gives module and operation of the first that is not
        finite."""
        from trimtab.probes.first_nonfinite import NonfiniteFinder

        found: dict[str, Any] = {}
        with NonfiniteFinder(model, found):
            yield found

    def without_autocast(self) -> AbstractContextManager[None]:
        """Disable `torch.autocast` in here."""
        from trimtab.probes.precision import without_autocast

        return without_autocast()


def replay(run: str | PathLike[str], incident: int = 1) -> ReplayPlan:
    """Plan the replay of an incident of a run that is over, or runs in a different process.

    Raises ConfigError if the run has no incident of this number.
    """
    report = diagnose(run)
    found = next((one for one in report.incidents if one.incident.number == incident), None)
    if found is None:
        numbers = ", ".join(str(one.incident.number) for one in report.incidents) or "none"
        raise ConfigError(
            f"{run} has no incident {incident}; it has: {numbers}; choose one by its number"
        )
    return _plan(report, found, RunDirectory.find(Path(run)))


def _plan(report: RunReport, diagnosis: Diagnosis, run: RunDirectory | None) -> ReplayPlan:
    incident, block = diagnosis.incident, report.block
    entries = [] if run is None else CheckpointIndex(run.home).entries
    older = [e for e in entries if e.step <= incident.onset.step and e.verdict is not Verdict.BAD]
    chosen = max(older, key=lambda entry: entry.step, default=None)
    first_step = 0 if chosen is None else chosen.step
    is_there = (block.step >= first_step) & (block.step <= incident.last.step)
    places = block.data_position[is_there]
    places = places[places >= 0]
    answers = answers_about(incident, block)
    return ReplayPlan(
        incident=incident.number,
        step=incident.onset.step,
        last_step=incident.last.step,
        checkpoint=None
        if chosen is None or run is None
        else CheckpointIndex(run.home).folder / chosen.folder,
        first_step=first_step,
        positions=range(int(places.min()), int(places.max()) + 1) if len(places) else range(0),
        seed=report.facts.seed,
        answers={name: str(facts.get("sentence")) for name, facts in answers.items()},
        proposal=_proposal(diagnosis, set(answers)),
    )


def _proposal(diagnosis: Diagnosis, made: set[str]) -> ProposedExperiment | None:
    ranking = diagnosis.ranking
    if ranking is None:
        return None
    yes = {name for name, result in ranking.results.items() if result.is_yes}
    return propose(
        ranking,
        is_nonfinite=bool(yes & {"loss_nonfinite", "gradient_nonfinite_first"}),
        is_state_nonfinite="state_nonfinite_first" in yes,
        is_half_precision="half_precision" in yes,
        made=made,
    )
