"""The observations that speak for or against causes: one table, by what they look at.

loss        loss and gradient norm          data        batches, tokens, resumes
nonfinite   NaN and infinity: which first
schedule    learning rate, place in the run  machine    precision, time, ranks
optimizer   moments and updates             weights     weights, activations, logits
experiments steps that were done again       settings    what differed from the snapshot
outside     what no update can do to weights
"""

from types import ModuleType

from trimtab.explain.evidence.observation import Observation
from trimtab.explain.evidence.observations import (
    data,
    experiments,
    loss,
    machine,
    nonfinite,
    optimizer,
    outside,
    schedule,
    settings,
    weights,
)


def _of(*modules: ModuleType) -> dict[str, Observation]:
    found = (item for module in modules for item in vars(module).values())
    return {item.id: item for item in found if isinstance(item, Observation)}


OBSERVATIONS = _of(loss, nonfinite, schedule, optimizer, weights, data, machine)
"""Every observation on records, by its id; their weights are fitted in the lab."""

BY_COMPARISON = _of(settings, outside)
BY_EXPERIMENT = _of(experiments) | BY_COMPARISON
"""What they say about causes is by construction; most can only be made in a recovering run."""

ALL_OBSERVATIONS = OBSERVATIONS | BY_EXPERIMENT
"""Both, for a ranking and its report."""
