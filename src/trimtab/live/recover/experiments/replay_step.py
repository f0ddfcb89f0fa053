"""One step of an experiment: what is changed in it, and what is read from it."""

from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import nn

from trimtab.core import signals
from trimtab.live.loop.step_loop import Step
from trimtab.live.measure.step_meter import read_head
from trimtab.live.protect.gate_reporter import VOTE
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.ranks.rank_vote import DISCARD
from trimtab.live.recover.experiments.rank_exchange import exchange_batches
from trimtab.probes.first_nonfinite import NonfiniteFinder
from trimtab.probes.passes import Pass, StepResult
from trimtab.probes.precision import without_autocast
from trimtab.probes.rows import keep_rows
from trimtab.state.host_copy import detached
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState


class Changes(Protocol):
    """What a step's changes are kept in."""

    changes: ExitStack
    found: dict[str, Any]


def change_step(
    step: Step, current: Pass, tape: BatchTape, model: nn.Module, group: RankGroup, to: Changes
) -> None:
    """Make the changes that a pass asks for at its last step."""
    if current.positions is not None or current.rows is not None or current.exchanges_ranks:
        while len(step.batches) < step.size and step.load():
            pass  # fetched as always, for the random numbers that fetching draws
    if current.positions is not None:
        served = [tape.batch_at(position) for position in current.positions]
        step.batches[:] = [batch for batch in served if batch is not None]
    if current.rows is not None:
        kept = [(micro, row) for owner, micro, row in current.rows.kept if owner == group.rank]
        for micro, batch in enumerate(step.batches):
            healthy = tape.batch_at(current.rows.healthy[micro % len(current.rows.healthy)])
            mine = [row for at, row in kept if at == micro]
            step.batches[micro] = keep_rows(batch, healthy, mine, current.rows.span)
    if current.exchanges_ranks:
        step.batches[:] = exchange_batches(group, step.batches)
    if current.without_autocast:
        to.changes.enter_context(without_autocast())
    if current.finds_nonfinite:
        to.changes.enter_context(NonfiniteFinder(model, to.found))


def step_result(
    step: int, head: dict[str, float], report: dict[str, float], *, was_skipped: bool
) -> StepResult:
    """The numbers of a step."""
    found = read_head(head) if head else {}
    return StepResult(
        step=step,
        loss=found.get(signals.LOSS),
        grad_norm=found.get(signals.GRAD_NORM),
        discarded=report.get(VOTE) == DISCARD,
        was_skipped=was_skipped,
        largest_loss=report.get(signals.MAX_RANK_LOSS),
    )


def distances(state: TrainingState, present: Snapshot) -> dict[str, Any]:
    """How far the present weights are from the live ones: bits, and the tensor furthest away."""
    furthest, name_of, different = 0.0, "", 0
    tensors = state.tensors()["parameters"]
    for name, host in present.parameters().items():
        if host.data is None:
            continue
        live = detached(tensors[name]).to("cpu", copy=True)
        if torch.equal(live, host.data):
            continue
        different += 1
        apart = (live.double() - host.data.double()).abs().max().item()
        apart /= max(live.double().square().mean().sqrt().item(), 1e-30)
        if not apart <= furthest:  # a NaN is further away than anything
            furthest, name_of = apart, name
    return {"tensor": name_of, "distance": furthest, "different": different, "of": len(tensors)}
