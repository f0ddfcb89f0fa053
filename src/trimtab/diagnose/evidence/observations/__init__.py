"""The observations that speak for or against causes: one table, by what they look at.

loss        loss and gradient norm          data        batches, tokens, resumes
nonfinite   NaN and infinity: which first
schedule    learning rate, place in the run  machine    precision, time, ranks
optimizer   moments and updates             weights     weights, activations, logits
experiments steps that were done again       settings    what differed from the snapshot
"""

from trimtab.diagnose.evidence.observation import Observation
from trimtab.diagnose.evidence.observations import (
    data,
    experiments,
    loss,
    machine,
    nonfinite,
    optimizer,
    schedule,
    settings,
    weights,
)

_MODULES = (loss, nonfinite, schedule, optimizer, weights, data, machine)

OBSERVATIONS: dict[str, Observation] = {
    item.id: item
    for module in _MODULES
    for item in vars(module).values()
    if isinstance(item, Observation)
}
"""Every observation on records, by its id; their weights are fitted in the lab."""

BY_EXPERIMENT: dict[str, Observation] = {
    item.id: item
    for module in (experiments, settings)
    for item in vars(module).values()
    if isinstance(item, Observation)
}
"""Every observation by experiment or comparison; what they say about causes is by construction."""

ALL_OBSERVATIONS = OBSERVATIONS | BY_EXPERIMENT
"""Both, for a ranking and its report."""
