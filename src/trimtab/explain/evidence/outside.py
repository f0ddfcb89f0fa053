"""Observations of what came from outside of batch, state and code: the hardware.

What they say about causes is by construction, not fitted (`causes/ranking.py`).
"""

from trimtab.core.signals import UPDATE_NORM
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.observation import SignalView, YesNo, observation


@observation("A bit flipped in memory", source="the bits of a tensor, summed before and after")
def bit_flipped(proof_of_hardware: str) -> YesNo:
    """Has the guard found a tensor that changed while no code wrote to it?"""
    return True, proof_of_hardware


_UPDATES = 16
"""Records of the update norm that say how far a step moves the weights; also the most steps that
lie between two records of a weight norm."""

_LARGEST_UPDATE = 100.0
"""Times the usual update. Source: with beta2 = 0.999 a coordinate moves at most 32 times the
learning rate in a step of Adam, and usually 0.2 to 1 times."""


@observation("Weights move further than updates can", source="the bound of Adam's update")
def moved_from_outside(
    context: IncidentContext, param_norms: tuple[SignalView, ...], lr: SignalView
) -> YesNo | None:
    """Does a group's norm change by more than all updates since its last record could have done?"""
    rise = max(lr.ratio(float(lr.after[:2].max())), 1.0)
    found = []
    for norms in param_norms:
        group = norms.name.partition("/")[2]
        updates = context.before(f"{UPDATE_NORM}/{group}", _UPDATES)
        if len(updates) == _UPDATES and updates.max() > 0:
            moved = abs(float(norms.after[0] - norms.before[-1]))
            found.append((moved / float(updates.max()) / rise, norms.name))
    if not found:
        return None
    furthest, name = max(found)
    text = f"{name} moves as far as {furthest:.3g} of its updates"
    return furthest > _LARGEST_UPDATE * _UPDATES, text
