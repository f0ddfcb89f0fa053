"""A check on the real scheduler; its curve is judged by the rules of `trimtab check`."""

import numpy as np

from trimtab.checks.objects.measure.simulation import Simulation
from trimtab.checks.rule import Fault, Level, NotMeasured, rule
from trimtab.checks.wording import number

RESUME_RATIO = 1.2
"""F05 of the catalogue: a rate that differs by this factor from one step to the next."""


@rule(
    "PF040",
    Level.ERROR,
    "The learning rate jumps at a resume",
    mechanism="The scheduler's state does not hold all that its rate depends on, so a resumed run "
    "goes on at a rate that weights and moments have never seen.",
    source="F05 of the catalogue; the ratio is that of TT031 of `trimtab check`",
    cannot_see="what the training script saves; state_dict of scheduler and optimizer are assumed",
)
def resume(simulation: Simulation) -> Fault | str:
    """Compare the rates after a save and load half-way with those without."""
    at, after = simulation.resumed_at, simulation.resumed
    if not len(after):
        raise NotMeasured("the run is too short to be resumed")
    wanted = simulation.rates[at : at + len(after)]
    floor = 1e-6 * np.abs(simulation.rates).max()
    low, high = np.minimum(wanted, after), np.maximum(wanted, after)
    apart = high - RESUME_RATIO * np.maximum(low, 0.0)
    row, group = np.unravel_index(int(np.argmax(apart)), apart.shape)
    what = (
        f"resumed at step {at:,}: {number(after[row, group])} where the run has "
        f"{number(wanted[row, group])}"
    )
    if apart[row, group] > floor:
        fix = "save and load every attribute that the rate depends on in state_dict"
        return Fault(what, how=fix)
    return what
