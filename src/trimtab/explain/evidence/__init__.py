"""What can be observed in the records around an incident: one table for all causes.

checks          the answer to a yes/no question; the questions that both rule sets ask
observation     an observation: a function whose parameters are its inputs; one signal's view
curves          loss, gradient norm, learning rate
model           optimizer moments, updates, weights, activations, logits
run             batches, resumes, precision, time, ranks
outside         what the hardware did, numbers that never move; reward, KL, entropy, lengths of a
                policy: their meaning is by construction
"""

from types import ModuleType

from trimtab.explain.evidence import curves, model, outside, run
from trimtab.explain.evidence.observation import Observation


def _of(*modules: ModuleType) -> dict[str, Observation]:
    found = (item for module in modules for item in vars(module).values())
    return {item.id: item for item in found if isinstance(item, Observation)}


OBSERVATIONS = _of(curves, model, run)
"""Every observation on records, by its id; their weights are fitted in the lab."""

BY_CONSTRUCTION = _of(outside)
"""What they say about causes follows from what they are: the lab has too few of them to fit."""

ALL_OBSERVATIONS = OBSERVATIONS | BY_CONSTRUCTION
"""Both, for a ranking and its report."""
